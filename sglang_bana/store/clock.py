"""The real clock."""

from __future__ import annotations

import time


class RealClock:
    """CLOCK_MONOTONIC, which all processes of this host share; see DatingClock."""

    def now_s(self) -> float:
        """See Clock."""
        return time.monotonic()

    def date_s(self) -> float:
        """See DatingClock."""
        return time.time()

    def sleep(self, duration_s: float) -> None:
        """See WaitingClock."""
        time.sleep(duration_s)
