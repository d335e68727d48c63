"""What an engine sees of the store: wants that fill up, slots to write into, and no waiting.

    prefetch ──▶ Want: known? ──▶ pages() grow from the front ──▶ outcome, or cancel ──▶ release
    take_slots ──▶ write into view(slot) ──▶ publish, or give_back

A page may be used once it was copied: copy first, then ask `is_valid`, and recompute on False. The
slots of a want are leased, but a store that was lost and found, or restarted, leases nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy.typing as npt

from bana.radix_global.keys import Namespace
from bana.radix_global.messages import Arrived, TierWeather, WantOutcome

Rows: TypeAlias = npt.NDArray[Any]


class LinkState(StrEnum):
    """Whether there is a store to ask."""

    AWAY = "away"  # not reached (yet); it is tried again
    ATTACHED = "attached"
    REFUSED = "refused"  # it said no; it is asked again now and then
    CLOSED = "closed"


class Slot(msgspec.Struct, frozen=True):
    """One slot of the arena of the daemon's life `epoch`, as it was in `generation`."""

    number: int
    generation: int
    epoch: int


class Restorable(msgspec.Struct, frozen=True):
    """The pages of a want that are in the arena, from its first one on without a gap.

    `origins` holds the place that each came from: 0 was in the arena already, 1 and on are tiers.
    """

    slots: tuple[Slot, ...] = ()
    origins: bytes = b""

    @property
    def pages(self) -> int:
        """How many there are."""
        return len(self.slots)


class Want:
    """One prefetch. Only its store writes into it; any thread may look.

    `known` is None until the store has said which places hold each page of the known prefix, and
    with it what reading from each tier cost then, in `tiers`; `coming` pages behind those are being
    computed by somebody, or are about to be.
    `outcome` is None while more may arrive.
    """

    def __init__(self, number: int, asked_pages: int) -> None:
        self.number = number
        self.asked_pages = asked_pages
        self.known: bytes | None = None
        self.tiers: tuple[TierWeather, ...] = ()
        self.coming = 0
        self.outcome: WantOutcome | None = None
        self._slots: list[Slot] = []
        self._origins = bytearray()

    @property
    def arrived_pages(self) -> int:
        """How many pages `pages` would give."""
        return 0 if self.outcome is WantOutcome.LOST else len(self._slots)

    def pages(self) -> Restorable:
        """What has arrived so far; nothing once the store was lost. O(pages)."""
        count = self.arrived_pages
        return Restorable(tuple(self._slots[:count]), bytes(self._origins[:count]))

    def note_known(
        self, places: bytes, tiers: tuple[TierWeather, ...] = (), coming: int = 0
    ) -> None:
        """The store's answer; a later one where pages have come into being."""
        self.tiers = self.tiers or tiers
        self.coming = coming
        self.known = places

    def note_arrived(self, event: Arrived, epoch: int) -> bool:
        """More pages; False where they do not follow the last one, and nothing is noted."""
        if event.first != len(self._slots) or self.outcome is not None:
            return False
        # Origins first: whoever counts slots must find as many origins.
        self._origins += event.origins
        pairs = zip(event.slots, event.generations, strict=True)
        self._slots += [Slot(number, generation, epoch) for number, generation in pairs]
        return True

    def note_settled(self, outcome: WantOutcome) -> None:
        """The end; the first word holds, except that a store may be lost at any time."""
        if self.outcome is None or outcome is WantOutcome.LOST:
            self.outcome = outcome


class StoreLink(Protocol):
    """A store as the engine uses it: every method returns at once, and none raises.

    All may be called from any thread. Without a store wants are LOST, slots None, pages dropped.
    """

    @property
    def state(self) -> LinkState: ...

    @property
    def reason(self) -> str:
        """Why it is not attached; empty when it is."""
        ...

    @property
    def tiers(self) -> tuple[TierWeather, ...]:
        """What reading from each tier costs, as last heard."""
        ...

    @property
    def counts(self) -> Mapping[str, int]:
        """What happened so far, by name; numbers that only grow."""
        ...

    def prefetch(
        self, keys: bytes, due_s: float, deadline_s: float, await_until_s: float = 0.0
    ) -> Want:
        """Want the pages `keys`, in prefix order; those with the earliest `due_s` come first.

        All times are on CLOCK_MONOTONIC. After `deadline_s` nothing more arrives. Pages that
        somebody announces until `await_until_s` are waited for as well.
        """
        ...

    def announce(self, keys: bytes) -> int:
        """The pages `keys`, in prefix order, are being computed here and will be published. The
        number by which to withdraw that.
        """
        ...

    def withdraw(self, number: int) -> None:
        """What was announced under this number has been published, or never will be."""
        ...

    def cancel(self, want: Want) -> None:
        """Nothing more of `want` is wanted; what has arrived stays until its release."""
        ...

    def release(self, want: Want) -> None:
        """The pages of `want` are not used any more, and what has not arrived is not wanted."""
        ...

    def take_slots(self, count: int) -> tuple[Slot, ...] | None:
        """`count` slots to write one page each into; None where there are not as many now."""
        ...

    def give_back(self, slots: Sequence[Slot]) -> None:
        """Slots that were taken and will not be published; nobody writes into them any more."""
        ...

    def publish(self, after: bytes, keys: bytes, slots: Sequence[Slot]) -> None:
        """The pages `keys`, in prefix order, are written into `slots`; they are the store's now.

        `after` is the key of the page before the first, empty where there is none.
        """
        ...

    def view(self, slot: Slot) -> memoryview | None:
        """The slot's bytes, None where that arena is gone. Hold it no longer than a copy takes."""
        ...

    def rows(self, epoch: int) -> Rows | None:
        """All slots of that life of the daemon as bytes, a row each, which may be longer than a
        slot; None where that arena is gone. Hold it no longer than a copy takes.
        """
        ...

    def is_valid(self, slot: Slot) -> bool:
        """Whether what was copied from the slot until now is the page that was leased."""
        ...

    def enter(self, namespace: Namespace) -> None:
        """The keys of all later calls are those of `namespace`: the weights have changed."""
        ...

    def close(self) -> None:
        """End it; slots that were taken must not be used any more."""
        ...
