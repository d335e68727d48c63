"""What time it is, as seen by a decision: always passed in, never read.

Times are seconds on CLOCK_MONOTONIC, which all processes of one boot of one host share.
"""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """A source of monotonic seconds; the real one lives with the adapters."""

    def now_s(self) -> float: ...


class WaitingClock(Clock, Protocol):
    """A clock whose time can also be waited for; for what runs in threads of its own."""

    def sleep(self, duration_s: float) -> None:
        """Return when `duration_s` >= 0 seconds have passed."""
        ...


class DatingClock(WaitingClock, Protocol):
    """A clock that also tells the date, for what files and other hosts have dated."""

    def date_s(self) -> float:
        """Seconds since 1970, which may be set back."""
        ...


class ManualClock:
    """A clock that stands still until it is told to advance (tests and the simulator)."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def advance(self, delta_s: float) -> None:
        """Move forward by `delta_s` seconds; a negative step raises ValueError."""
        if delta_s < 0:
            raise ValueError(f"time cannot go back: delta_s={delta_s}, allowed: >= 0")
        self._now_s += delta_s
