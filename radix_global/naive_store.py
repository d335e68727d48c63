"""A store in this process, as plainly as it can be: what tests of an engine are held against.

Nothing happens by itself: pages of `tier_pages` arrive when `deliver` is called, wants settle when
`settle` is. `lose` takes the store away, as a daemon that dies does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bana.radix_global.keys import Namespace, split_keys
from bana.radix_global.link import LinkState, Rows, Slot, StoreLink, Want
from bana.radix_global.messages import Arrived, TierWeather, WantOutcome

ARENA_BIT = 1
TIER_BIT = 2


class NaiveStore(StoreLink):
    """`slot_count` slots of `slot_bytes`, pages by key, one tier; `wake` as a client's."""

    def __init__(self, slot_count: int, slot_bytes: int, wake: Callable[[], None]) -> None:
        self.tier_pages: dict[bytes, bytes] = {}
        self.arena_pages: dict[bytes, Slot] = {}
        self.wants: dict[int, tuple[Want, list[bytes]]] = {}
        self.published: list[tuple[bytes, bytes]] = []
        self.namespaces: list[Namespace] = []
        self._memory = np.zeros((slot_count, slot_bytes), np.uint8)
        self._generations = [1] * slot_count
        self._free = list(range(slot_count))
        self._taken: set[int] = set()
        self._epoch = 1
        self._next_want = self._announcements = 0
        self.announced: dict[int, list[bytes]] = {}
        self._wake = wake
        self._state = LinkState.ATTACHED
        self._counts = {"lost": 0, "published_pages": 0, "duplicate_pages": 0}

    @property
    def state(self) -> LinkState:
        return self._state

    @property
    def reason(self) -> str:
        return "" if self._state is LinkState.ATTACHED else "the store is away"

    @property
    def tiers(self) -> tuple[TierWeather, ...]:
        return (TierWeather(1, "naive", 1e9, 0.0, 0, 0),)

    @property
    def counts(self) -> Mapping[str, int]:
        return dict(self._counts)

    def prefetch(
        self, keys: bytes, due_s: float, deadline_s: float, await_until_s: float = 0.0
    ) -> Want:
        self._next_want += 1
        pages = split_keys(keys)
        want = Want(self._next_want, len(pages))
        if self._state is not LinkState.ATTACHED:
            want.note_settled(WantOutcome.LOST)
            return want
        known = [self._mask(key) for key in pages]
        end = known.index(0) if 0 in known else len(known)
        coming = len(pages) - end if await_until_s else 0
        want.note_known(bytes(known[:end]), coming=coming)
        self.wants[want.number] = (want, pages)
        self._extend(want, pages[:end])
        if want.arrived_pages == end and not coming:
            self.settle(want)
        return want

    def announce(self, keys: bytes) -> int:
        self._announcements += 1
        self.announced[self._announcements] = split_keys(keys)
        return self._announcements

    def withdraw(self, number: int) -> None:
        self.announced.pop(number, None)

    def cancel(self, want: Want) -> None:
        if want.number in self.wants:
            want.note_settled(WantOutcome.CANCELLED)

    def release(self, want: Want) -> None:
        if self.wants.pop(want.number, None) is not None:
            want.note_settled(WantOutcome.CANCELLED)

    def take_slots(self, count: int) -> tuple[Slot, ...] | None:
        if self._state is not LinkState.ATTACHED or len(self._free) < count:
            return None
        numbers = [self._free.pop() for _ in range(count)]
        self._taken.update(numbers)
        return tuple(self._slot(number) for number in numbers)

    def give_back(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            self._free_slot(slot)

    def publish(self, after: bytes, keys: bytes, slots: Sequence[Slot]) -> None:
        for key, slot in zip(split_keys(keys), slots, strict=True):
            if slot.epoch != self._epoch or slot.number not in self._taken:
                continue
            if key in self.arena_pages:
                self._counts["duplicate_pages"] += 1
                self._free_slot(slot)
                continue
            self._taken.remove(slot.number)
            self.arena_pages[key] = slot
            self.published.append((after, key))
            self._counts["published_pages"] += 1
            after = key

    def view(self, slot: Slot) -> memoryview | None:
        return memoryview(self._memory[slot.number]) if slot.epoch == self._epoch else None

    def rows(self, epoch: int) -> Rows | None:
        return self._memory if epoch == self._epoch else None

    def is_valid(self, slot: Slot) -> bool:
        return slot.epoch == self._epoch and self._generations[slot.number] == slot.generation

    def enter(self, namespace: Namespace) -> None:
        self.namespaces.append(namespace)

    def close(self) -> None:
        self._state = LinkState.CLOSED

    # What a test does to the store.

    def deliver(self, want: Want, pages: int) -> None:
        """Let the next `pages` pages arrive from the tier; of those that are computed elsewhere,
        what has been published by now.
        """
        held = self.wants.get(want.number)
        if held is None or want.known is None:
            return
        known = [self._mask(key) for key in held[1]]
        end = known.index(0) if 0 in known else len(known)
        if want.coming and end > len(want.known):
            want.note_known(bytes(known[:end]), coming=len(known) - end)
        begin = want.arrived_pages
        for key in held[1][begin : min(begin + pages, len(want.known))]:
            if key not in self.arena_pages:
                self._load(key)
            self._extend(want, held[1][: want.arrived_pages + 1], origin=1)
        if want.arrived_pages == len(want.known) and not want.coming:
            self.settle(want)
        self._wake()

    def settle(self, want: Want, outcome: WantOutcome | None = None) -> None:
        """End the want, as complete or with what is missing where nothing else is said."""
        whole = want.arrived_pages == want.asked_pages
        want.note_settled(outcome or (WantOutcome.COMPLETE if whole else WantOutcome.MISSING))
        self._wake()

    def evict(self, key: bytes) -> None:
        """Give the page's slot to nobody: whoever copies from it now must notice."""
        self._free_slot(self.arena_pages.pop(key))

    def lose(self) -> None:
        """The store dies: every want, lease and slot with it, but not what is on the tier."""
        self._state = LinkState.AWAY
        self._epoch += 1
        self._counts["lost"] += 1
        for want, _ in self.wants.values():
            want.note_settled(WantOutcome.LOST)
        self.wants.clear()
        self.arena_pages.clear()
        self._taken.clear()
        self._free = list(range(len(self._memory)))
        self._wake()

    def come_back(self) -> None:
        """It was restarted."""
        self._state = LinkState.ATTACHED

    def _mask(self, key: bytes) -> int:
        in_arena = ARENA_BIT if key in self.arena_pages else 0
        return in_arena | (TIER_BIT if key in self.tier_pages else 0)

    def _extend(self, want: Want, keys: Sequence[bytes], origin: int = 0) -> None:
        """Hand over what of `keys` is in the arena behind what has arrived already."""
        first = want.arrived_pages
        slots: list[Slot] = []
        for key in keys[first:]:
            if key not in self.arena_pages:
                break
            slots.append(self.arena_pages[key])
        if slots:
            numbers = tuple(slot.number for slot in slots)
            generations = tuple(slot.generation for slot in slots)
            origins = bytes([origin]) * len(slots)
            want.note_arrived(
                Arrived(want.number, first, numbers, generations, origins), self._epoch
            )

    def _load(self, key: bytes) -> None:
        slot = self._slot(self._free.pop())
        payload = self.tier_pages[key]
        self._memory[slot.number][: len(payload)] = np.frombuffer(payload, np.uint8)
        self.arena_pages[key] = slot

    def _free_slot(self, slot: Slot) -> None:
        if slot.epoch == self._epoch:
            self._taken.discard(slot.number)
            self._generations[slot.number] += 1
            self._free.append(slot.number)

    def _slot(self, number: int) -> Slot:
        return Slot(number, self._generations[number], self._epoch)
