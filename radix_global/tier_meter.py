"""What a tier was seen to give: bandwidth while busy, latency, outcomes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

# So much of each operation's duration goes into the latency.
LATENCY_STEP = 0.1


class TierMeter:
    """A tier's reads, or its writes, as they begin and end; time comes in and never goes back.

    Bytes and busy seconds are both forgotten at the rate 1/memory_s of busy time, so that their
    quotient follows the tier and stays as it is while the tier rests.
    """

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._at_s = 0.0
        self._recent_bytes = 0.0
        self._recent_busy_s = 0.0
        self._ended_s = 0.0
        self._outcomes: Counter[str] = Counter()
        self.under_way = 0
        self.moved_bytes = 0
        self.latency_s: float | None = None

    def begin(self, now_s: float) -> None:
        """An operation was begun."""
        self._pass_time(now_s)
        self.under_way += 1

    def end(self, outcome: str, moved_bytes: int, now_s: float) -> None:
        """An operation has come back, and moved so much: nothing unless it succeeded."""
        self._pass_time(now_s)
        self.under_way -= 1
        self._ended_s = now_s
        self._outcomes[outcome] += 1
        self._recent_bytes += moved_bytes
        self.moved_bytes += moved_bytes

    def note_latency(self, took_s: float, most_s: float) -> None:
        """One took so long; more than `most_s` counts as that: one stall is no habit."""
        seen_s = min(took_s, most_s)
        if self.latency_s is None:
            self.latency_s = seen_s
        else:
            self.latency_s += LATENCY_STEP * (seen_s - self.latency_s)

    def bandwidth_bytes_per_s(self, now_s: float) -> float | None:
        """Bytes moved a second of busy time; None before anything was tried."""
        self._pass_time(now_s)
        return self._recent_bytes / self._recent_busy_s if self._recent_busy_s > 0 else None

    def recent_latency_s(self, now_s: float) -> float | None:
        """The latency, None when the tier has rested so long that it may be another by now."""
        is_recent = self.under_way > 0 or now_s - self._ended_s <= self._memory_s
        return self.latency_s if is_recent else None

    def outcomes(self) -> Mapping[str, int]:
        """How often an operation ended how."""
        return dict(self._outcomes)

    def _pass_time(self, now_s: float) -> None:
        passed_s, self._at_s = max(0.0, now_s - self._at_s), max(now_s, self._at_s)
        if self.under_way == 0 or passed_s == 0:
            return
        kept = math.exp(-passed_s / self._memory_s)
        self._recent_bytes *= kept
        self._recent_busy_s = self._recent_busy_s * kept + self._memory_s * (1 - kept)
