"""Which slot of the arena is whose.

             reserve                publish
    FREE ───────────────▶ RESERVED ─────────▶ HELD (in the index) ──evicted──▶ FREE
      └──take_for_reading──▶ READING ──read──▶ HELD
    RESERVED, READING ──give_up──▶ FREE

A slot that is taken out of the index or given up is in a new generation before it is used again.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from enum import IntEnum

import msgspec
import numpy as np

from bana.radix_global.daemon.gear import SlotArena
from bana.radix_global.index import PrefixIndex
from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.pages import ARENA
from bana.slo.errors import StoreError

MAX_RISEN = 1024


class SlotState(IntEnum):
    """What a slot is used for."""

    FREE = 0
    RESERVED = 1
    READING = 2
    HELD = 3


class Holding(msgspec.Struct, frozen=True):
    """The page in a slot that the index knows: it came there at `came_s`."""

    key: bytes
    namespace: int
    size_bytes: int
    came_s: float
    reads: int = 0


class Selection(msgspec.Struct, frozen=True):
    """Pages of a namespace, or of any, that came before a time, or whenever."""

    namespace: int | None = None
    before_s: float = math.inf


class SlotBook:
    """The slots of one arena; takes pages out of the index to make room. O(1) a slot.

    `spares` are the reader's own: always READING, though not always the same ones.
    """

    def __init__(self, arena: SlotArena, index: PrefixIndex, spares: Sequence[int]) -> None:
        self._arena = arena
        self._index = index
        self.layout = arena.layout
        slots = arena.layout.slots
        self._states = bytearray(slots)
        self._keys = bytearray(slots * KEY_BYTES)
        self._namespaces = array("I", bytes(4 * slots))
        self._sizes = array("I", bytes(4 * slots))
        self._reads = array("I", bytes(4 * slots))
        self._came_s = array("d", bytes(8 * slots))
        self._reserved: dict[bytes, set[int]] = {}
        self._numbers: Counter[SlotState] = Counter({SlotState.FREE: slots})
        self._risen: list[int] = []
        self._move(spares, SlotState.READING)
        self.evicted_pages = 0

    def count(self, state: SlotState) -> int:
        """How many slots are in that state."""
        return self._numbers[state]

    def state(self, slot: int) -> SlotState:
        """What the slot is used for; ValueError where there is no such slot."""
        self.layout.require_slot(slot)
        return SlotState(self._states[slot])

    def generation(self, slot: int) -> int:
        """Which generation the slot is in."""
        return self._arena.generation(slot)

    def take_for_reading(self, count: int) -> tuple[int, ...]:
        """At most `count` slots, whatever may go is evicted for them."""
        slots = self._take(count)
        self._move(slots, SlotState.READING)
        return slots

    def reserve(self, owner: bytes, count: int) -> tuple[int, ...]:
        """At most `count` slots that `owner` may write into."""
        slots = self._take(count)
        self._move(slots, SlotState.RESERVED)
        if slots:
            self._reserved.setdefault(owner, set()).update(slots)
        return slots

    def reserved(self, owner: bytes) -> frozenset[int]:
        """The slots that `owner` may write into."""
        return frozenset(self._reserved.get(owner, ()))

    def require_reserved(self, owner: bytes, slots: Sequence[int]) -> None:
        """StoreError unless all are different and reserved for `owner`."""
        own = self._reserved.get(owner, set())
        strange = [slot for slot in slots if slot not in own]
        if strange or len(set(slots)) != len(slots):
            raise StoreError(f"slots {(strange or list(slots))[:8]} are not the sender's, or twice")

    def end_reservation(self, owner: bytes, slots: Sequence[int]) -> None:
        """Free slots that `owner` had, and does not write into any more."""
        self.require_reserved(owner, slots)
        self._drop_reservation(owner, slots)
        self.give_up(slots)

    def hold_published(self, owner: bytes, slot: int, page: Holding) -> None:
        """The index has taken the page that `owner` wrote into the slot."""
        self._drop_reservation(owner, (slot,))
        self._hold(slot, page)

    def hold_read(self, slot: int, page: Holding) -> None:
        """The index has taken the page that was read into the slot."""
        if self._states[slot] != SlotState.READING:
            raise StoreError(f"slot {slot} is {self.state(slot).name}, and a read says it ended")
        self._hold(slot, page)

    def give_up(self, slots: Sequence[int]) -> None:
        """Free slots that the index does not hold."""
        self._arena.free(slots)
        self._move(slots, SlotState.FREE)

    def holding(self, slot: int) -> Holding | None:
        """The page in the slot, None where the index has none there."""
        if self.state(slot) is not SlotState.HELD:
            return None
        key = bytes(self._keys[slot * KEY_BYTES : (slot + 1) * KEY_BYTES])
        return Holding(
            key,
            self._namespaces[slot],
            self._sizes[slot],
            self._came_s[slot],
            self._reads[slot],
        )

    @property
    def has_risen(self) -> bool:
        """Whether `take_risen` would answer any."""
        return bool(self._risen)

    def take_risen(self, count: int) -> list[int]:
        """Up to `count` slots whose pages are read twice as often as when they last were here."""
        risen = self._risen[-count:]
        del self._risen[-count:]
        return risen

    def note_read(self, slot: int) -> None:
        """The page in the slot was asked for once more."""
        reads = self._reads[slot] = min(self._reads[slot] + 1, 2**32 - 1)
        # Powers of two, so that what is read all the time is not looked at all the time.
        if reads & (reads - 1) == 0 and len(self._risen) < MAX_RISEN:
            self._risen.append(slot)

    def held_slots(self, wanted: Selection) -> list[int]:
        """The slots with such pages. O(slots), at the speed of memory."""
        is_held = np.frombuffer(self._states, np.uint8) == SlotState.HELD
        is_held &= np.frombuffer(self._came_s, np.float64) < wanted.before_s
        if wanted.namespace is not None:
            is_held &= np.frombuffer(self._namespaces, np.uint32) == wanted.namespace
        found: list[int] = np.flatnonzero(is_held).tolist()
        return found

    def census(self, wanted: Selection) -> dict[int, tuple[int, int]]:
        """How many such pages, and bytes, the arena holds of each namespace."""
        slots = np.array(self.held_slots(wanted), np.int64)
        namespaces = np.frombuffer(self._namespaces, np.uint32)[slots]
        sizes = np.frombuffer(self._sizes, np.uint32)[slots]
        found: dict[int, tuple[int, int]] = {}
        for tag in np.unique(namespaces).tolist():
            of_it = sizes[namespaces == tag]
            found[tag] = (len(of_it), int(of_it.sum(dtype=np.int64)))
        return found

    def clear(self, slot: int, wanted: Selection) -> bool:
        """Take such a page out of the arena; False where somebody uses it, or none is there."""
        page = self.holding(slot)
        if page is None or not _is_wanted(page, wanted):
            return False
        if self._index.drop_from_arena(page.key) is None:
            return False
        self.give_up((slot,))
        return True

    def evict(self, pages: int) -> int:
        """Take up to `pages` pages out of the arena; how many went."""
        slots = self._index.evict(ARENA, pages=pages).slots
        self.evicted_pages += len(slots)
        self.give_up(slots)
        return len(slots)

    def _hold(self, slot: int, page: Holding) -> None:
        self._keys[slot * KEY_BYTES : (slot + 1) * KEY_BYTES] = page.key
        self._namespaces[slot] = page.namespace
        self._sizes[slot] = page.size_bytes
        self._reads[slot] = page.reads
        self._came_s[slot] = page.came_s
        self._move((slot,), SlotState.HELD)

    def _take(self, count: int) -> tuple[int, ...]:
        lacking = count - self._arena.free_slots
        if lacking > 0:
            self.evict(lacking)
        return self._arena.take(count)

    def _drop_reservation(self, owner: bytes, slots: Sequence[int]) -> None:
        left = self._reserved.get(owner, set()).difference(slots)
        if left:
            self._reserved[owner] = left
        else:
            self._reserved.pop(owner, None)

    def _move(self, slots: Sequence[int], state: SlotState) -> None:
        for slot in slots:
            self._numbers[SlotState(self._states[slot])] -= 1
            self._states[slot] = state
        self._numbers[state] += len(slots)


def _is_wanted(page: Holding, wanted: Selection) -> bool:
    return wanted.namespace in (None, page.namespace) and page.came_s < wanted.before_s
