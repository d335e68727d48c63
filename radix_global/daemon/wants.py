"""Who wants which prefix in the arena, and what becomes of it.

    Prefetch ─▶ lease the known prefix ─▶ Known ─▶ in the arena ────────────┐
                                                 ├─ being read: join ───────┼─▶ Arrived, in prefix
                                                 ├─ on a tier: slot, read ──┤   order ─▶ Settled
                                                 └─ announced: once known ──┘
    Release ─▶ the lease ends; what nobody else waits for is not read

A want's goal is how many pages can still arrive for it; a failed read, or no room, lowers it, and
pages that come into being raise it. It is settled when the goal has arrived and nothing more is
awaited, at its deadline, or on release. The lease then shrinks to what
has arrived. Nothing here waits: all that takes time comes back as an outcome.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from bana.radix_global.daemon.announcements import AnnouncementBook
from bana.radix_global.daemon.deadlines import Deadlines
from bana.radix_global.daemon.gear import ARENA_BIT
from bana.radix_global.daemon.limits import StoreLimits
from bana.radix_global.daemon.owners import Owner, PendingWant
from bana.radix_global.daemon.readings import Reading, ReadingBook, ReadOrder
from bana.radix_global.daemon.sequels import SequelBook
from bana.radix_global.daemon.slots import SlotBook, SlotState
from bana.radix_global.daemon.weather import ReadWeather
from bana.radix_global.index import PrefixIndex
from bana.radix_global.keys import KEY_BYTES, split_keys
from bana.radix_global.messages import (
    Arrived,
    Known,
    Prefetch,
    Settled,
    WantOutcome,
)
from bana.radix_global.pages import ARENA, Match
from bana.slo.errors import StoreError

FindWeather: TypeAlias = Callable[[], ReadWeather]


class Came(NamedTuple):
    """A page in `slot`, come from the place `origin`, that these wait for at their positions."""

    waiters: dict[PendingWant, int]
    slot: int
    origin: int


class WantBook:
    """The wants of all owners over one arena."""

    def __init__(
        self,
        index: PrefixIndex,
        slots: SlotBook,
        readings: ReadingBook,
        limits: StoreLimits,
        counts: Counter[str],
        find_weather: FindWeather,
    ) -> None:
        self._index = index
        self._slots = slots
        self._readings = readings
        self._limits = limits
        self._counts = counts
        self._find_weather = find_weather
        self._deadlines = Deadlines()
        self._announced = AnnouncementBook()
        self._sequels = SequelBook()
        self._most_leased = int(limits.leased_share * slots.layout.slots)
        # The reader's spares are not for wants.
        spares = slots.count(SlotState.READING)
        self._most_reading = spares + max(1, int(limits.reading_share * slots.layout.slots))

    def add(self, owner: Owner, asked: Prefetch) -> None:
        """A new want; StoreError where its number is taken."""
        if asked.want in owner.wants:
            raise StoreError(f"want {asked.want} is known already; number each anew")
        keys = split_keys(asked.keys)
        self._counts["wanted_pages"] += len(keys)
        if len(owner.wants) < self._limits.max_wants:
            del keys[owner.admit(keys, self._most_leased - owner.leased_pages) :]
        else:
            keys.clear()
        want = self._lease(owner, asked, keys) if keys else None
        if want is None:
            owner.tell(Known(asked.want, b""))
            owner.tell(Settled(asked.want, WantOutcome.NO_ROOM, 0))
            self._counts["wants_no_room"] += 1
            return
        owner.wants[want.number] = want
        self._deadlines.add(want, want.deadline_s)
        self._advance(want)

    def release(self, owner: Owner, number: int) -> None:
        """End the want and its lease; an unknown one is none."""
        want = owner.wants.get(number)
        if want is None:
            return
        if want.outcome is None:
            self._settle(want, WantOutcome.CANCELLED)
        if owner.wants.pop(number, None) is not None:
            self._index.release(owner.name, want.lease_id)
            owner.note_released(want.keys)

    def cancel(self, owner: Owner, number: int) -> None:
        """Nothing more is to arrive for the want; what has arrived stays leased."""
        want = owner.wants.get(number)
        if want is not None and want.outcome is None:
            self._settle(want, WantOutcome.CANCELLED)

    def cancel_all(self, owner: Owner) -> None:
        """Nothing more is to arrive for `owner`; what has arrived stays leased."""
        for want in tuple(owner.wants.values()):
            if want.outcome is None:
                self._settle(want, WantOutcome.CANCELLED)

    def release_all(self, owner: Owner) -> None:
        """`owner` is gone."""
        for number in tuple(owner.wants):
            self.release(owner, number)

    def expire(self, now_s: float) -> None:
        """Settle the wants whose deadlines have passed, or for whom nobody has announced anything
        in time.
        """
        for want in self._deadlines.take_passed(now_s):
            self._settle(want, WantOutcome.LATE)
        for want in self._sequels.take_past_grace(now_s):
            if want.rest and not self._announced.is_coming(want.rest[0]):
                self._end_rest(want)

    def next_deadline_s(self) -> float | None:
        """When `expire` has something to do."""
        ends_s = (self._deadlines.next_s(), self._sequels.next_s())
        return min((end_s for end_s in ends_s if end_s is not None), default=None)

    # Pages that come into being

    def announce(self, owner: Owner, number: int, keys: Sequence[bytes]) -> None:
        """`owner` is computing these; StoreError where the number is taken."""
        is_noted = self._announced.add(owner, number, keys)
        self._counts["announced_pages" if is_noted else "announced_in_vain"] += len(keys)

    def withdraw(self, owner: Owner, number: int) -> None:
        """Nothing more comes of that announcement."""
        self._note_ended(self._announced.end(owner, number))

    def withdraw_all(self, owner: Owner) -> None:
        """Nothing more comes of anything that `owner` has announced."""
        self._note_ended(self._announced.end_all(owner))

    def grow(self, keys: Sequence[bytes]) -> None:
        """These pages are known now: whoever awaited one of them goes on."""
        for key in keys:
            for want in self._sequels.take(key):
                self._extend(want)

    def _note_ended(self, keys: Sequence[bytes]) -> None:
        self._counts["withdrawn_pages"] += len(keys)
        for key in keys:
            for want in self._sequels.find(key):
                self._end_rest(want)

    def _end_rest(self, want: PendingWant) -> None:
        """What the want awaits will not come: its owner has to know, where it waits for more."""
        self._drop_rest(want)
        self._advance(want)
        if want.outcome is None:
            self._tell_known(want)

    def _drop_rest(self, want: PendingWant) -> None:
        self._sequels.remove(want)
        want.rest = []

    def _extend(self, want: PendingWant) -> None:
        """Lease what is known by now of what the want awaited, and bring it in."""
        owner, first = want.owner, len(want.keys)
        keys = want.keys + want.rest
        allowed = owner.admit(keys, self._most_leased - owner.leased_pages)
        if allowed < len(keys):
            del keys[allowed:]
            want.allowed_pages = allowed
        try:
            lease = self._index.lease(owner.name, b"".join(keys))
        except StoreError:
            self._cut(want, want.goal, WantOutcome.NO_ROOM)
            self._advance(want)
            return
        match = lease.match
        if match.pages < first:
            # A tier has lost what is still being read from it: only the old lease keeps what is in
            # the arena behind that.
            self._index.release(owner.name, lease.lease_id)
            self._end_rest(want)
            return
        self._index.release(owner.name, want.lease_id)
        want.lease_id = lease.lease_id
        want.places = match.places
        grown = keys[first : match.pages]
        owner.note_leased(grown)
        want.keys += grown
        want.rest = keys[len(want.keys) :]
        want.slots += [None] * len(grown)
        want.origins += bytes(len(grown))
        want.goal = len(want.keys)
        want.end = want.foresee_end()
        self._counts["grown_pages"] += len(grown)
        self._tell_known(want)
        self._seek(want, match, first)
        self._sequels.add(want)
        self._advance(want)

    def serve(self, key: bytes, slot: int) -> None:
        """The page was published: whoever waits for it has it."""
        self.fill([Came(self._readings.serve(key), slot, ARENA)])

    def fill(self, pages: Sequence[Came]) -> None:
        """Hand pages that have come to those who wait for them."""
        touched: dict[PendingWant, None] = {}
        for waiters, slot, origin in pages:
            for want, position in waiters.items():
                want.slots[position] = slot
                want.origins[position] = origin
                self._slots.note_read(slot)
            touched |= dict.fromkeys(waiters)
        for want in touched:
            self._advance(want)

    def fail(self, waiters: dict[PendingWant, int], outcome: WantOutcome) -> None:
        """A page that these wait for will not come: they end before it."""
        for want, position in waiters.items():
            self._cut(want, position, outcome)
            self._advance(want)

    # How a want begins

    def _lease(self, owner: Owner, asked: Prefetch, keys: list[bytes]) -> PendingWant | None:
        """The want with its lease and what is in the arena; None where no lease may be given."""
        try:
            lease = self._index.lease(owner.name, b"".join(keys))
        except StoreError:
            return None
        match = lease.match
        want = PendingWant(
            owner=owner,
            number=asked.want,
            keys=keys[: match.pages],
            lease_id=lease.lease_id,
            due_s=asked.due_s,
            deadline_s=asked.deadline_s,
            slots=[None] * match.pages,
            origins=bytearray(match.pages),
            goal=match.pages,
            places=match.places,
            end=WantOutcome.MISSING,
            asked_pages=len(asked.keys) // KEY_BYTES,
            allowed_pages=len(keys),
        )
        want.end = want.foresee_end()
        want.rest = self._find_rest(keys[match.pages :], asked.await_until_s)
        owner.note_leased(want.keys)
        self._counts["known_pages"] += match.pages
        self._tell_known(want)
        self._seek(want, match, 0)
        self._sequels.add(want)
        if want.rest and asked.await_until_s:
            self._sequels.add_grace(want, asked.await_until_s)
        return want

    def _find_rest(self, unknown: list[bytes], await_until_s: float) -> list[bytes]:
        """Those of the `unknown` pages that are worth waiting for.

        Only who is promised them waits: two that each compute what the other one awaits would wait
        for each other.
        """
        if not unknown or not await_until_s:
            return []
        if not self._announced.has_ended(unknown[0]):
            return unknown
        return list(itertools.takewhile(self._announced.is_coming, unknown))

    def _tell_known(self, want: PendingWant) -> None:
        weather = self._find_weather().before(want.due_s, self._readings.count_shared(want))
        want.owner.tell(Known(want.number, want.places, weather, len(want.rest)))

    def _seek(self, want: PendingWant, match: Match, first: int) -> None:
        """Find every page from `first` on: in the arena, on its way, or to be read."""
        joined: list[tuple[int, Reading]] = []
        lacking: list[int] = []
        for position in range(first, match.pages):
            places = match.places[position]
            if places & ARENA_BIT:
                want.slots[position] = match.slots[position]
                self._slots.note_read(match.slots[position])
            elif (reading := self._readings.find(want.keys[position])) is not None:
                joined.append((position, reading))
            else:
                lacking.append(position)
        self._begin(want, lacking, match.places)
        for position, reading in joined:
            if position < want.goal:
                self._readings.join(reading, want, position)

    def _begin(self, want: PendingWant, lacking: Sequence[int], places: bytes) -> None:
        """Have the `lacking` pages read, as many as there is room for, the first ones first."""
        room = max(0, self._most_reading - self._slots.count(SlotState.READING))
        slots = self._slots.take_for_reading(min(len(lacking), room))
        begun = self._readings.begin(
            [
                ReadOrder(self._describe(want, position), slot, places[position])
                for position, slot in zip(lacking, slots, strict=False)
            ]
        )
        self._slots.give_up(slots[begun:])
        if begun < len(lacking):
            self._cut(want, lacking[begun], WantOutcome.NO_ROOM)

    def _describe(self, want: PendingWant, position: int) -> Reading:
        return Reading(
            key=want.keys[position],
            after=want.keys[position - 1] if position else b"",
            size_bytes=want.owner.page_bytes,
            tag=want.owner.tag,
            due_s=want.due_s,
            waiters={want: position},
        )

    # How it goes on and ends

    def _advance(self, want: PendingWant) -> None:
        """Hand over what has arrived without a gap, and settle where that is all."""
        if want.outcome is not None:
            return
        first, end = want.sent, want.sent
        slots: list[int] = []
        while end < want.goal and (slot := want.slots[end]) is not None:
            slots.append(slot)
            end += 1
        if slots:
            want.sent = end
            generations = tuple(self._slots.generation(slot) for slot in slots)
            origins = bytes(want.origins[first:end])
            self._counts["arrived_pages"] += len(slots)
            want.owner.tell(Arrived(want.number, first, tuple(slots), generations, origins))
        if want.sent == want.goal and not want.rest:
            self._settle(want, want.end)

    def _cut(self, want: PendingWant, position: int, outcome: WantOutcome) -> None:
        """Nothing from `position` on will arrive."""
        if want.outcome is not None or position > want.goal:
            return
        if want.rest:
            self._drop_rest(want)
        elif position == want.goal:
            return
        for key in want.keys[position : want.goal]:
            self._readings.leave(want, key)
        want.goal, want.end = position, outcome

    def _settle(self, want: PendingWant, outcome: WantOutcome) -> None:
        self._cut(want, want.sent, outcome)
        want.outcome = outcome
        self._deadlines.remove(want)
        self._counts[f"wants_{outcome}"] += 1
        want.owner.tell(Settled(want.number, outcome, want.sent))
        self._shrink_lease(want)

    def _shrink_lease(self, want: PendingWant) -> None:
        """Lease what has arrived and nothing more."""
        owner = want.owner
        if want.sent and want.sent == len(want.keys):
            return
        if want.sent:
            try:
                lease = self._index.lease(owner.name, b"".join(want.keys[: want.sent]))
            except StoreError:
                # All leases are held: this one stays as long as it is.
                return
            if lease.match.pages < want.sent:
                self._index.release(owner.name, lease.lease_id)
                return
            self._index.release(owner.name, want.lease_id)
            want.lease_id = lease.lease_id
        else:
            self._index.release(owner.name, want.lease_id)
            owner.wants.pop(want.number, None)
        owner.note_released(want.keys[want.sent :])
        del want.keys[want.sent :]
