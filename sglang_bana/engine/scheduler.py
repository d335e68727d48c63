"""bana's scheduler class: SGLang's own, and the place where bana's policies take hold.

It overrides nothing yet, so a bana instance decides exactly as SGLang does.
"""

from __future__ import annotations

from sglang.srt.managers.scheduler import Scheduler


class BanaScheduler(Scheduler):
    """SGLang's scheduler under bana's name, so that an instance can prove which one it runs."""
