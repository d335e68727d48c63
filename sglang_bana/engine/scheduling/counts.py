"""What the scheduler's policies have done, in numbers that only grow."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class PassCounts:
    """Counted by the scheduler's thread; other threads may read at any time.

    `shares` are steps in which tighter requests went beside a chunked one, `yields` prompts that
    were put back half computed, `resumes` those that went on, `given_up` half-computed prompts
    whose pages were released, `retractions` running requests put back for want of KV, `deferrals`
    passes in which decodes went first, `faults` decisions that a policy failed to make.
    """

    passes: int = 0
    demotions: int = 0
    shares: int = 0
    yields: int = 0
    resumes: int = 0
    given_up: int = 0
    retractions: int = 0
    deferrals: int = 0
    rejections: int = 0
    faults: int = 0
