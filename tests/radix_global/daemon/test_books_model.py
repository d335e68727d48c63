"""Whatever clients, tiers and administrators do in whatever order, the daemon's books hold.

No slot is lost or given twice, nothing leased goes away, whoever is told of a page finds that page
in its slot, and every want settles.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bana.radix_global import messages as said
from bana.radix_global.admin_messages import AskClear, AskPin, AskUnpin, AskWarm, Mode
from bana.radix_global.daemon.chores import ChoreDone, Refreshed
from bana.radix_global.daemon.slots import SlotState
from bana.radix_global.keys import split_keys
from bana.radix_global.pages import ARENA
from bana.radix_global.stores.store import HeldPage, PageOrigin, ReadOutcome
from bana.radix_global.writer.jobs import PageWritten, WriteEnd

from .model_clients import Client, Seen

SLOTS, SPARES, PAGE = 14, 3, 8


def _key(path: str) -> bytes:
    return hashlib.sha256(path.encode()).digest()[:16]


def _keys(path: str) -> bytes:
    return b"".join(_key(path[:end]) for end in range(1, len(path) + 1))


PATHS = ["".join(letters) for n in (1, 2, 3, 4) for letters in itertools.product("ab", repeat=n)]
PARENTS = {_key(path): _key(path[:-1]) if path[:-1] else b"" for path in PATHS}
PATH = st.sampled_from(PATHS)
CLIENTS = st.sampled_from([0, 1, 2])
FAULTS = [ReadOutcome.MISSING, ReadOutcome.CORRUPT, ReadOutcome.FAILED, ReadOutcome.WRONG_LENGTH]
READS = st.sampled_from([ReadOutcome.READ] * 8 + FAULTS)
LANES = st.sampled_from([(1, 0), (2, 0), (2, 1)])
ENDS = [WriteEnd.PRESENT, WriteEnd.FULL, WriteEnd.CROWDED_OUT]
WRITES = st.sampled_from([WriteEnd.WRITTEN] * 3 + ENDS)


class BooksMachine(RuleBasedStateMachine):
    def __init__(self, shop: Any) -> None:
        super().__init__()
        self.shop = shop
        self.arena, self.reader, self.writer = shop.arena, shop.reader, shop.writer
        self.tiers, self.index, self.processes = shop.tiers, shop.index, shop.processes
        self.books, self.desk, self.chores = shop.books, shop.desk, shop.chores
        self.limits, self.pins = shop.limits, 0
        self.clients = [Client(number) for number in range(3)]

    # Clients

    @rule(number=CLIENTS, keep=st.booleans())
    def attach(self, number: int, keep: bool) -> None:
        client = self.clients[number]
        kept = tuple(client.slots) if keep else ()
        client.forget()
        client.life += 1
        names = (said.PROTOCOL, client.client_id, number + 1, 1, PAGE, self.shop.space, "c", 7)
        self._hear(client, said.Attach(*names, kept))
        assert client.is_attached
        assert client.slots == sorted(kept)

    @rule(
        choice=CLIENTS,
        path=PATH,
        due=st.integers(0, 9),
        wait=st.integers(-1, 30),
        grace=st.sampled_from([None, None, 0, 5]),
    )
    def prefetch(self, choice: int, path: str, due: int, wait: int, grace: int | None) -> None:
        client, now_s = self._choose(choice), self.shop.now_s
        client.next_want += 1
        client.wants[client.next_want] = Seen(split_keys(_keys(path)))
        until_s = 0.0 if grace is None else now_s + grace
        self._hear(client, said.Prefetch(client.next_want, _keys(path), due, now_s + wait, until_s))

    @rule(choice=CLIENTS, path=PATH)
    def announce(self, choice: int, path: str) -> None:
        client = self._choose(choice)
        client.next_announcement += 1
        client.announced.append(client.next_announcement)
        self._hear(client, said.Announce(client.next_announcement, _keys(path)))

    @rule(choice=CLIENTS)
    def withdraw(self, choice: int) -> None:
        client = self._choose(choice)
        if client.announced:
            self._hear(client, said.Withdraw(client.announced.pop(0)))

    @rule(choice=CLIENTS, which=st.integers(0, 9))
    def release(self, choice: int, which: int) -> None:
        client = self._choose(choice)
        if client.wants:
            want = sorted(client.wants)[which % len(client.wants)]
            self._hear(client, said.Release(want))
            client.wants.pop(want, None)

    @rule(choice=CLIENTS, which=st.integers(0, 9))
    def cancel(self, choice: int, which: int) -> None:
        client = self._choose(choice)
        if client.wants:
            want = sorted(client.wants)[which % len(client.wants)]
            self._hear(client, said.Cancel(want))
            assert want not in client.wants or client.wants[want].outcome is not None

    @rule(choice=CLIENTS, path=PATH, pages=st.integers(1, 3))
    def publish(self, choice: int, path: str, pages: int) -> None:
        client = self._choose(choice)
        self._hear(client, said.Reserve(pages))
        keys = split_keys(_keys(path))[-pages:][: len(client.slots)]
        slots, client.slots = tuple(client.slots[: len(keys)]), client.slots[len(keys) :]
        for key, slot in zip(keys, slots, strict=True):
            self.arena.contents[slot] = key
        if slots:
            self._hear(client, said.Publish(PARENTS[keys[0]], b"".join(keys), slots))

    @rule(choice=CLIENTS)
    def publish_what_is_not_its_own(self, choice: int) -> None:
        other = next((c.slots[0] for c in self.clients if c.slots), None)
        client = self._choose(choice)
        if other is not None and other not in client.slots:
            self._hear(client, said.Publish(b"", _key("a"), (other,)))
            assert not client.is_attached

    @rule(choice=CLIENTS, count=st.integers(1, 3))
    def give_back(self, choice: int, count: int) -> None:
        client = self._choose(choice)
        slots, client.slots = tuple(client.slots[:count]), client.slots[count:]
        self._hear(client, said.Return(slots))

    @rule(choice=CLIENTS, is_death=st.booleans())
    def end(self, choice: int, is_death: bool) -> None:
        client = self._choose(choice)
        if is_death:
            self.books.bury(client.number + 1)
        else:
            self._hear(client, said.Detach())
        client.forget()

    @rule(choice=CLIENTS)
    def cut(self, choice: int) -> None:
        """Its events could not be delivered; it still has what it has, and writes into it."""
        client = self._choose(choice)
        self.books.cut(client.route, "a test")
        for slot in client.slots:
            self.arena.contents[slot] = b"scribbled by a client that was cut off"
        client.lose()

    @rule(number=CLIENTS, path=PATH)
    def talk_without_being_attached(self, number: int, path: str) -> None:
        client = self.clients[number]
        if not client.is_attached:
            self._hear(client, said.Prefetch(99, _keys(path), 0, self.shop.now_s + 9))
            assert client.was_told_lost

    # Tiers, reading, writing

    @rule(path=PATH, tier=st.sampled_from([1, 2]))
    def find(self, path: str, tier: int) -> None:
        keys = split_keys(_keys(path))
        self.tiers[tier].keys |= set(keys)
        pages = tuple(HeldPage(key, PageOrigin(PARENTS[key], 1), PAGE) for key in keys)
        self.desk.note_news(Refreshed(tier, pages, (), is_whole=True))
        self._deliver()

    @rule(path=PATH, tier=st.sampled_from([1, 2]))
    def lose(self, path: str, tier: int) -> None:
        self.tiers[tier].keys.discard(_key(path))
        self.desk.note_news(Refreshed(tier, (), (_key(path),), is_whole=False))

    @rule(lanes=st.lists(st.tuples(LANES, READS), min_size=1, max_size=6))
    def read(self, lanes: list[tuple[tuple[int, int], ReadOutcome]]) -> None:
        """Threads that read go on: each begins a read, or ends one, however long it took."""
        for (tier, lane), outcome in lanes:
            chosen = self.reader.board.lanes(tier)[lane]
            if chosen.reading is None:
                self.reader.board.next_read(chosen, self.shop.now_s)
                continue
            key, slot = chosen.reading.key, chosen.reading.slot
            self.arena.contents[slot] = key if outcome is ReadOutcome.READ else b"damaged"
            if outcome is ReadOutcome.MISSING:
                self.tiers[tier].keys.discard(key)
            self.reader.board.finish(chosen, outcome, self.shop.now_s)

    @rule()
    def take_reads(self) -> None:
        self.books.note_reads(self.shop.take_reads(), self.shop.now_s)
        self._deliver()

    @rule(lanes=st.lists(st.tuples(LANES, READS), min_size=4, max_size=12))
    def read_much(self, lanes: list[tuple[tuple[int, int], ReadOutcome]]) -> None:
        self.read([each for each in lanes for _ in range(2)])
        self.take_reads()

    @precondition(lambda self: self.writer.jobs)
    @rule(end=WRITES, lost=PATH)
    def write(self, end: WriteEnd, lost: str) -> None:
        job = self.writer.jobs.pop(0)
        assert self.arena.contents[job.slot] == job.key
        tiers = [tier for tier in (1, 2) if job.tiers >> tier & 1]
        for tier in tiers:
            self.tiers[tier].keys.discard(_key(lost))
            if end in (WriteEnd.WRITTEN, WriteEnd.PRESENT):
                self.tiers[tier].keys.add(job.key)
            written = PageWritten(job.key, job.slot, tier, end, (_key(lost),), tier == tiers[-1])
            self.books.note_written([written])
        self._deliver()

    @rule(passed=st.integers(0, 8))
    def pass_time(self, passed: int) -> None:
        self.shop.now_s += passed
        self.reader.board.expire(self.shop.now_s)
        self.books.tick(self.shop.now_s)
        self.desk.tick(self.shop.now_s)
        self._deliver()

    # Administrators

    @rule(path=PATH, mode=st.sampled_from(Mode), is_pin=st.booleans())
    def fetch(self, path: str, mode: Mode, is_pin: bool) -> None:
        self.pins += 1
        ask = (AskPin if is_pin else AskWarm)(1, "secret", mode, _keys(path), 9.0)
        self.desk.ask(b"admin", ask, self.shop.now_s)
        self._deliver()

    @rule()
    def unpin(self) -> None:
        self.desk.ask(b"admin", AskUnpin(1, "secret", Mode.CARRY_OUT), self.shop.now_s)
        self.desk.tick(self.shop.now_s)
        self._deliver()

    @rule()
    def clear(self) -> None:
        self.desk.ask(b"admin", AskClear(1, "secret", Mode.CARRY_OUT), self.shop.now_s)
        for chores in self.chores:
            while chores.tickets:
                self.desk.note_news(ChoreDone(chores.tier, chores.tickets.pop(), {}, {}))
        self._deliver()

    # What must hold

    @invariant()
    def every_slot_is_somewhere_once(self) -> None:
        floor = self.books.floor
        if floor is None:
            return
        by_state = {state: set() for state in SlotState}
        for slot in range(SLOTS):
            by_state[floor.slots.state(slot)].add(slot)
        assert not any(map(self.arena.list.is_taken, by_state[SlotState.FREE]))
        assert len(by_state[SlotState.FREE]) == self.arena.free_slots
        reserved = [floor.slots.reserved(owner.client) for owner in self.books.owners]
        assert sum(map(len, reserved)) == len(by_state[SlotState.RESERVED])
        assert set().union(*reserved) == by_state[SlotState.RESERVED]
        assert by_state[SlotState.READING] == self.reader.has
        held = {key: self.index.inspect(key) for key in PARENTS}
        places = {k: s.slot for k, s in held.items() if s is not None and s.places & 1 << ARENA}
        assert set(places.values()) == by_state[SlotState.HELD]
        assert len(places) == len(by_state[SlotState.HELD])
        for key, slot in places.items():
            page = floor.slots.holding(slot)
            assert page is not None
            assert page.key == key == self.arena.contents[slot]

    @invariant()
    def what_was_handed_over_is_there(self) -> None:
        for client in self.clients:
            for want in client.wants.values():
                for key, slot, raised in zip(want.keys, want.slots, want.generations, strict=False):
                    state = self.index.inspect(key)
                    assert state is not None
                    assert (state.slot, state.places & 1) == (slot, 1)
                    assert state.leases > 0
                    assert self.arena.generations[slot] == raised

    @invariant()
    def bounds_hold(self) -> None:
        floor = self.books.floor
        if floor is None:
            return
        for owner in self.books.owners:
            assert len(owner.wants) <= self.limits.max_wants
            assert owner.leased_pages <= int(self.limits.leased_share * SLOTS)
            assert len(floor.slots.reserved(owner.client)) <= self.limits.reserved_pages
        assert floor.slots.count(SlotState.RESERVED) <= int(self.limits.reserved_share * SLOTS)
        assert floor.slots.count(SlotState.READING) <= SPARES + int(
            self.limits.reading_share * SLOTS
        )
        assert self.processes.watched == set(self.books.owners.descriptors())
        wants = sum(len(owner.wants) for owner in self.books.owners)
        assert wants <= self.index.counts().leases <= wants + len(floor.writes) + self.pins

    @invariant()
    def nobody_awaits_what_is_there(self) -> None:
        for owner in self.books.owners:
            for want in owner.wants.values():
                if want.rest:
                    assert want.outcome is None
                    # Pages before it may have left their tier while they are being read.
                    known = self.index.match(b"".join([*want.keys, want.rest[0]])).pages
                    assert known <= len(want.keys)

    def teardown(self) -> None:
        """Once everybody is gone and everything has ended, all slots are free again."""
        for _ in range(5):
            self.pass_time(8)
        assert all(w.outcome is not None for c in self.clients for w in c.wants.values())
        for client in self.clients:
            self.books.bury(client.number + 1)
            client.forget()
        for _ in range(2):
            under_way = [at for at in ((1, 0), (2, 0), (2, 1)) if self._is_reading(*at)]
            self.read([(at, ReadOutcome.READ) for at in under_way])
            self.take_reads()
        while self.writer.jobs:
            self.write(WriteEnd.WRITTEN, "a")
        self.unpin()
        self.pass_time(8)
        assert self.index.counts().leases == 0
        if self.books.floor is not None:
            self.books.floor.slots.evict(SLOTS)
        self.every_slot_is_somewhere_once()
        assert self.arena.free_slots == SLOTS - SPARES

    def _is_reading(self, tier: int, lane: int) -> bool:
        return self.reader.board.lanes(tier)[lane].reading is not None

    def _choose(self, number: int) -> Client:
        """That client if it is attached, else another one that is."""
        if not any(client.is_attached for client in self.clients):
            self.attach(number, False)
        attached = [client for client in self.clients if client.is_attached]
        return attached[number % len(attached)]

    def _hear(self, client: Client, request: Any) -> None:
        self.books.hear(client.route, request, self.shop.now_s)
        self._deliver()

    def _deliver(self) -> None:
        """Every client takes in what the daemon says, as far as it is still on that route."""
        for route, event in self.books.outbox:
            client = next((c for c in self.clients if c.route == route), None)
            if client is not None:
                self._take(client, event)
        self.books.outbox.clear()

    def _take(self, client: Client, event: Any) -> None:
        match event:
            case said.Attached():
                client.is_attached = True
                client.slots = list(event.kept)
            case said.Lost():
                client.lose()
                client.was_told_lost = True
            case said.Known():
                want = client.wants[event.want]
                # Said again, it says more.
                assert len(event.places) >= len(want.known or b"")
                assert len(event.places) + event.coming <= len(want.keys)
                want.known = event.places
            case said.Arrived():
                want = client.wants[event.want]
                assert want.outcome is None
                assert event.first == len(want.slots)
                for slot, key in zip(event.slots, want.keys[event.first :], strict=False):
                    assert self.arena.contents[slot] == key
                want.slots += event.slots
                want.generations += event.generations
            case said.Settled():
                want = client.wants[event.want]
                assert want.outcome is None
                assert event.pages == len(want.slots)
                want.outcome = event.outcome
            case said.Reserved():
                client.slots += event.slots
            case said.Published():
                client.slots += event.returned


def test_no_order_of_events_breaks_the_books(make_shop: Callable[..., Any]) -> None:
    rules = settings(max_examples=60, stateful_step_count=60, deadline=None)
    run_state_machine_as_test(lambda: BooksMachine(make_shop()), settings=rules)
