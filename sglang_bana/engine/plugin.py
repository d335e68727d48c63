"""What bana registers with SGLang in each process of an instance.

SGLang logs and then ignores what a plugin raises, so each process asks `was_activated`
afterwards.
"""

from __future__ import annotations

import multiprocessing

from sglang_bana.engine.instance import is_instance

_activated = False


def activate() -> None:
    """Register what an instance needs; nothing at all where bana started none."""
    global _activated
    if not is_instance():
        return
    from sglang_bana.engine.attention import register_backend

    register_backend()
    if multiprocessing.parent_process() is None:
        # Requests are read in the main process; a hook would make the others import its modules.
        from sglang_bana.engine.handoff_header import register_parts
        from sglang_bana.engine.request_checks import register_check

        register_check()
        register_parts()
    _activated = True


def was_activated() -> bool:
    """Whether SGLang ran `activate` in this process, to its end."""
    return _activated
