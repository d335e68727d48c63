"""What a run tells whoever watches it, about twice a second."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Tally(msgspec.Struct, frozen=True):
    """Where a run stands. `left_s`: until the last request is due."""

    sent: int
    done: int
    failed: int
    left_s: float


class Watch(Protocol):
    """Shows a run. Its calls are made between requests that are due: they must be cheap."""

    def begin(self, label: str, total: int) -> None:
        """Something with `total` requests begins."""

    def show(self, tally: Tally) -> None:
        """Where it stands."""

    def say(self, line: str) -> None:
        """A line that stays."""

    def end(self) -> None:
        """It is over."""


class NoWatch:
    """Shows nothing."""

    def begin(self, label: str, total: int) -> None:
        pass

    def show(self, tally: Tally) -> None:
        pass

    def say(self, line: str) -> None:
        pass

    def end(self) -> None:
        pass
