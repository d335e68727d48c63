"""What bana registers with SGLang in each process of an instance.

SGLang logs and then ignores what a plugin raises, so each process asks `was_activated`
afterwards.
"""

from __future__ import annotations

from sglang_bana.engine.instance import is_instance

_activated = False


def activate() -> None:
    """Register the CPU attention backend; nothing at all where bana started no instance."""
    global _activated
    if not is_instance():
        return
    from sglang_bana.engine.attention import register_backend

    register_backend()
    _activated = True


def was_activated() -> bool:
    """Whether SGLang ran `activate` in this process, to its end."""
    return _activated
