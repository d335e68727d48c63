"""Which slots of the arena are free."""

from __future__ import annotations

from collections.abc import Sequence

from bana.slo.errors import StoreError


class SlotList:
    """`slots` slots, all free at first; the one freed last is taken first, as it is in the caches.

    O(1) a slot, 9 bytes each.
    """

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots - 1, -1, -1))
        self._is_taken = bytearray(slots)

    def __len__(self) -> int:
        return len(self._free)

    def is_taken(self, slot: int) -> bool:
        """Whether somebody has the slot."""
        return 0 <= slot < len(self._is_taken) and bool(self._is_taken[slot])

    def take(self, count: int) -> tuple[int, ...]:
        """At most `count` free slots, fewer when there are fewer."""
        if count < 0:
            raise StoreError(f"take {count} slots, allowed: >= 0")
        slots = tuple(self._free.pop() for _ in range(min(count, len(self._free))))
        for slot in slots:
            self._is_taken[slot] = 1
        return slots

    def free(self, slots: Sequence[int]) -> None:
        """Nobody has these any more; StoreError, and nothing freed, if one is not taken."""
        for slot in slots:
            if not self.is_taken(slot):
                raise StoreError(f"slot {slot} is not taken and cannot be freed; free it once")
        if len(set(slots)) != len(slots):
            raise StoreError(f"slots {list(slots)} are to be freed, one of them twice")
        for slot in slots:
            self._is_taken[slot] = 0
            self._free.append(slot)
