"""Wants that wait for pages which nobody has yet, each under the next one of them."""

from __future__ import annotations

from bana.radix_global.daemon.deadlines import Deadlines
from bana.radix_global.daemon.owners import PendingWant


class SequelBook:
    """Who waits for which page to come into being. O(1) a want, O(log n) where it has a grace."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, dict[PendingWant, None]] = {}
        self._graces = Deadlines()

    def add(self, want: PendingWant) -> None:
        """It waits for the first page of its rest; for nothing where that is empty."""
        if want.rest:
            self._waiting.setdefault(want.rest[0], {})[want] = None
        else:
            self._graces.remove(want)

    def add_grace(self, want: PendingWant, until_s: float) -> None:
        """Nobody need have announced its next page before `until_s`."""
        self._graces.add(want, until_s)

    def remove(self, want: PendingWant) -> None:
        """It waits no longer."""
        self._graces.remove(want)
        waiting = self._waiting.get(want.rest[0], {}) if want.rest else {}
        waiting.pop(want, None)
        if want.rest and not waiting:
            self._waiting.pop(want.rest[0], None)

    def take(self, key: bytes) -> tuple[PendingWant, ...]:
        """Who waited for this page; they are no longer in the book."""
        return tuple(self._waiting.pop(key, ()))

    def find(self, key: bytes) -> tuple[PendingWant, ...]:
        """Who waits for this page."""
        return tuple(self._waiting.get(key, ()))

    def take_past_grace(self, now_s: float) -> list[PendingWant]:
        """Whose grace is over."""
        return self._graces.take_passed(now_s)

    def next_s(self) -> float | None:
        """When the next grace ends."""
        return self._graces.next_s()
