"""What one request may still take: its limits and the absolute deadline they set.

arrival ───────────── deadline (arrival + TTFT limit)
   │ waited │ remaining service │ slack │
            now
"""

from __future__ import annotations

import msgspec


class Budget(msgspec.Struct, frozen=True):
    """The promise of one request, with times on CLOCK_MONOTONIC.

    `arrival_s` is stamped once, at the front door. `e2e_s` limits the whole answer, None where
    nothing was promised about it.
    """

    slo_class: str
    arrival_s: float
    ttft_s: float
    tpot_s: float
    e2e_s: float | None = None

    @property
    def deadline_s(self) -> float:
        """When the first token is due at the latest."""
        return self.arrival_s + self.ttft_s

    def slack_s(self, now_s: float, remaining_s: float) -> float:
        """Seconds to spare when `remaining_s` of service are left; negative means late."""
        return self.deadline_s - now_s - remaining_s
