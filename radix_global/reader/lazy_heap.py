"""A heap whose entries may become void: they are skipped when they come up."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar

Item = TypeVar("Item")
Key = tuple[float, ...]
FEWEST_ENTRIES = 64


class LazyHeap(Generic[Item]):
    """Items by key, smallest first; `is_live` says whether an entry still counts.

    O(log n) a push or pop. Void entries are at most as many as live ones were, and FEWEST_ENTRIES.
    """

    def __init__(self, is_live: Callable[[Key, Item], bool]) -> None:
        self._is_live = is_live
        self._entries: list[tuple[Key, int, Item]] = []
        self._pushes = count()
        self._limit = FEWEST_ENTRIES

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, key: Key, item: Item) -> None:
        """Add an entry; the item's others stay, if they are live."""
        heapq.heappush(self._entries, (key, next(self._pushes), item))
        if len(self._entries) > self._limit:
            self._drop_void()

    def peek(self) -> tuple[Key, Item] | None:
        """The smallest live entry."""
        while self._entries:
            key, _, item = self._entries[0]
            if self._is_live(key, item):
                return key, item
            heapq.heappop(self._entries)
        return None

    def pop(self) -> Item | None:
        """Take the smallest live entry out."""
        found = self.peek()
        if found is None:
            return None
        heapq.heappop(self._entries)
        return found[1]

    def _drop_void(self) -> None:
        live = {id(entry[2]): entry for entry in self._entries if self._is_live(entry[0], entry[2])}
        self._entries = list(live.values())
        heapq.heapify(self._entries)
        self._limit = 2 * len(self._entries) + FEWEST_ENTRIES
