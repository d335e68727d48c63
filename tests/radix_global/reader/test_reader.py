"""The reader's threads on real stores: sound, slow, stalled, failing and damaging ones."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from bana.radix_global.arena import Arena
from bana.radix_global.arena_layout import ArenaLayout
from bana.radix_global.reader import reader as reader_module
from bana.radix_global.reader.options import ReaderOptions
from bana.radix_global.reader.policies import READERS
from bana.radix_global.reader.reader import Reader, ReadTier, SlotAccess
from bana.radix_global.reader.wanting import PageRead, PageWant, ReadEnd, Wanted
from bana.radix_global.stores.directory import DirectoryStore
from bana.radix_global.stores.faulty import Fault, FaultOptions, FaultyStore
from bana.radix_global.stores.memory import MemoryOptions, MemoryStore
from bana.radix_global.stores.options import DirectoryOptions
from bana.radix_global.stores.store import PageOrigin, ReadOutcome, Store
from bana.radix_global.stores.throttled import Throttle, ThrottledStore
from bana.slo.clock import ManualClock
from bana.slo.errors import StoreError

PAGE_BYTES = 20_000
SLOTS = 96
# Longer than anything here takes; what waits so long has failed.
PATIENCE_S = 60.0
BOTH = 0b110


class RealClock:
    """Seconds as they pass."""

    def now_s(self) -> float:
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        time.sleep(duration_s)


class GatedStore(MemoryStore):
    """A tier whose reads stand still until the gate is opened, and then damage their target."""

    def __init__(self) -> None:
        super().__init__(MemoryOptions(2**24), ManualClock())
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)

    def read(self, key: bytes, target: memoryview) -> ReadOutcome:
        self.entered.release()
        assert self.gate.wait(PATIENCE_S)
        target[:] = b"\xee" * len(target)
        return ReadOutcome.CORRUPT


class Brittle(MemoryStore):
    """A tier that breaks the protocol: it raises."""

    def read(self, key: bytes, target: memoryview) -> ReadOutcome:
        raise RuntimeError("not as agreed")


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def page(number: int) -> bytes:
    return Random(number).randbytes(PAGE_BYTES)


def fill(store: Store, count: int) -> Store:
    for number in range(count):
        store.put(key(number), page(number), PageOrigin(b"", 0))
    return store


def memory(count: int = 40) -> MemoryStore:
    store = MemoryStore(MemoryOptions(2**24), ManualClock())
    fill(store, count)
    return store


class Hall:
    """An arena with a reader, and its outcomes as they are told."""

    def __init__(self, path: Path, stores: Mapping[int, Store], **given: Any) -> None:
        self.arena = Arena(path, ArenaLayout(SLOTS, PAGE_BYTES), 1)
        width = given.pop("width", 2)
        policy = READERS.create(given.pop("policy", "completion"), given.pop("policy_options", {}))
        tiers = {number: ReadTier(store, width) for number, store in stores.items()}
        spares = self.arena.take(width * len(tiers))
        self.told = threading.Event()
        self.times_told = 0
        self.reader = Reader(
            tiers,
            SlotAccess(self.arena.view, spares),
            policy,
            RealClock(),
            self.tell,
            ReaderOptions(**given),
        )
        self.reader.start()

    def tell(self) -> None:
        self.times_told += 1
        self.told.set()

    def want(self, number: int, tiers: int = BOTH, wait_s: float = PATIENCE_S) -> PageWant:
        (slot,) = self.arena.take(1)
        deadline_s = time.monotonic() + wait_s
        want = PageWant(key(number), slot, PAGE_BYTES, tiers, 1.0, number, deadline_s)
        assert self.reader.want(want) is Wanted.TAKEN
        return want

    def collect(self, count: int) -> dict[int, PageRead]:
        """The next `count` outcomes by page, read only when told of them."""
        ends: list[PageRead] = []
        end_s = time.monotonic() + PATIENCE_S
        while len(ends) < count:
            assert self.told.wait(max(0.0, end_s - time.monotonic())), f"{len(ends)} of {count}"
            self.told.clear()
            ends += self.reader.take_outcomes()
        assert len(ends) == count
        return {int.from_bytes(end.key, "big"): end for end in ends}

    def content(self, end: PageRead) -> bytes:
        return bytes(self.arena.view(end.slot)[:PAGE_BYTES])


Open = Callable[..., Hall]


@pytest.fixture(autouse=True)
def _no_second_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle threads wait to be told: what they are not told of is never done."""
    monkeypatch.setattr(reader_module, "IDLE_S", 1_000.0)


def let_idle() -> None:
    """Leave threads the time to find that there is nothing to do."""
    time.sleep(0.1)


@pytest.fixture
def open_hall(tmp_path: Path) -> Iterator[Open]:
    """A function: tiers in, a started reader on an arena out, closed at the end."""
    halls: list[Hall] = []

    def open_one(stores: Mapping[int, Store], **given: Any) -> Hall:
        halls.append(Hall(tmp_path / f"arena{len(halls)}", stores, **given))
        return halls[-1]

    yield open_one
    for hall in halls:
        assert hall.reader.close(PATIENCE_S) == 0
        hall.arena.close()


@pytest.mark.parametrize("policy", READERS.names())
def test_pages_arrive_verified_in_their_slots(policy: str, open_hall: Open, tmp_path: Path) -> None:
    options = DirectoryOptions(2**24, segment_bytes=2**18)
    disk = DirectoryStore(tmp_path / "tier", options, Random(1))
    hall = open_hall({1: memory(), 2: fill(disk, 40)}, policy=policy, stall_after_s=PATIENCE_S)
    let_idle()
    wants = {number: hall.want(number) for number in range(40)}
    ends = hall.collect(40)
    for number, end in ends.items():
        assert (end.end, end.slot) == (ReadEnd.READ, wants[number].slot)
        assert hall.content(end) == page(number)
    reports = hall.reader.report()
    assert sum(report.read_bytes for report in reports) == 40 * PAGE_BYTES
    assert all(report.backlog_pages == report.reading_pages == 0 for report in reports)
    disk.close()


def test_both_tiers_read_at_the_same_time(open_hall: Open) -> None:
    meeting = threading.Barrier(2)

    class Meeting(MemoryStore):
        """A read here ends only while the other tier reads too."""

        def read(self, key: bytes, target: memoryview) -> ReadOutcome:
            meeting.wait(PATIENCE_S)
            return super().read(key, target)

    stores = {tier: fill(Meeting(MemoryOptions(2**24), ManualClock()), 8) for tier in (1, 2)}
    # Nobody leaves the last page to the other here.
    never = {"leave_factor": 0}
    hall = open_hall(stores, width=1, lot_pages=1, stall_after_s=PATIENCE_S, policy_options=never)
    for number in range(8):
        hall.want(number)
    ends = hall.collect(8)
    assert Counter(end.tier for end in ends.values()) == {1: 4, 2: 4}


def test_damage_is_read_from_the_other_tier(open_hall: Open) -> None:
    shares = {Fault.ERROR: 0.2, Fault.SHORT: 0.2, Fault.CORRUPT: 0.4}
    bad = FaultyStore(memory(), FaultOptions(shares), RealClock(), Random(3))
    patient = {"policy": "sequential", "stall_after_s": PATIENCE_S}
    hall = open_hall({1: bad, 2: memory()}, **patient)
    for number in range(40):
        hall.want(number)
    ends = hall.collect(40)
    assert {hall.content(end) == page(number) for number, end in ends.items()} == {True}
    failed = Counter(failure.outcome for end in ends.values() for failure in end.failures)
    injected = bad.stats().counts
    assert failed.total() > 0
    assert failed[ReadOutcome.CORRUPT] == injected.get("injected_corrupt", 0)
    assert failed[ReadOutcome.SHORT] == injected.get("injected_short", 0)


def test_what_no_tier_has_is_missing_everywhere(open_hall: Open) -> None:
    hall = open_hall({1: memory(1), 2: memory(2)}, stall_after_s=PATIENCE_S)
    want = hall.want(50)
    end = hall.collect(1)[50]
    assert (end.end, end.slot) == (ReadEnd.FAILED, want.slot)
    assert {failure.outcome for failure in end.failures} == {ReadOutcome.MISSING}


def test_a_store_that_raises_costs_no_thread(open_hall: Open) -> None:
    hall = open_hall({1: Brittle(MemoryOptions(2**20), ManualClock()), 2: memory()}, width=1)
    for number in range(10):
        hall.want(number, 0b10)
    assert {end.end for end in hall.collect(10).values()} == {ReadEnd.FAILED}
    hall.want(11)
    assert hall.collect(1)[11].end is ReadEnd.READ


def test_a_stalled_tier_delays_nobody_and_its_late_writes_hit_nothing(open_hall: Open) -> None:
    gated = GatedStore()
    hall = open_hall({1: gated, 2: memory()}, width=2, stall_after_s=0.05)
    first = hall.want(0, 0b10)
    assert gated.entered.acquire(timeout=PATIENCE_S)
    assert hall.reader.want(msgspec.structs.replace(first, tiers=BOTH)) is Wanted.KNOWN
    for number in range(1, 40):
        hall.want(number)
    ends = hall.collect(40)
    assert {end.tier for end in ends.values()} == {2}
    stuck = sum(report.reading_pages for report in hall.reader.report())
    assert 1 <= stuck <= 2
    # The slots of stalled reads are the reader's: all others may be given away and filled.
    hall.arena.free([end.slot for end in ends.values()])
    others = hall.arena.take(SLOTS)
    assert len(others) == SLOTS - 4
    for slot in others:
        hall.arena.view(slot)[:] = bytes(PAGE_BYTES)
    gated.gate.set()
    assert hall.reader.close(PATIENCE_S) == 0
    assert all(not any(hall.arena.view(slot)) for slot in others)


def test_a_deadline_ends_the_wait_for_a_stalled_tier(open_hall: Open) -> None:
    gated = GatedStore()
    hall = open_hall({1: gated}, width=1, stall_after_s=PATIENCE_S)
    hall.want(1, 0b10)
    assert gated.entered.acquire(timeout=PATIENCE_S)
    let_idle()
    # Every thread stands still or waits for something later.
    begun_s = time.monotonic()
    hall.want(2, 0b10, wait_s=0.2)
    hall.want(3, 0b10, wait_s=0.1)
    ends = hall.collect(2)
    assert {number: end.end for number, end in ends.items()} == {2: ReadEnd.LATE, 3: ReadEnd.LATE}
    assert 0.2 <= time.monotonic() - begun_s < PATIENCE_S / 2
    gated.gate.set()
    assert hall.collect(1)[1].end is ReadEnd.FAILED


def test_cancelling_is_answered_while_the_read_stands_still(open_hall: Open) -> None:
    gated = GatedStore()
    hall = open_hall({1: gated}, width=1)
    want = hall.want(1, 0b10)
    assert gated.entered.acquire(timeout=PATIENCE_S)
    assert hall.reader.cancel(want.key)
    end = hall.collect(1)[1]
    assert (end.end, end.slot != want.slot) == (ReadEnd.CANCELLED, True)
    gated.gate.set()


def test_closing_beside_a_stalled_tier_takes_no_longer_than_allowed(tmp_path: Path) -> None:
    gated = GatedStore()
    hall = Hall(tmp_path / "arena", {1: gated, 2: memory()}, width=1, stall_after_s=PATIENCE_S)
    hall.want(1, 0b10)
    assert gated.entered.acquire(timeout=PATIENCE_S)
    hall.want(2, 0b10)
    begun_s = time.monotonic()
    assert hall.reader.close(0.2) >= 1
    assert time.monotonic() - begun_s < PATIENCE_S / 2
    assert {end.end for end in hall.reader.take_outcomes()} == {ReadEnd.CANCELLED}
    with pytest.raises(StoreError, match="closed"):
        hall.want(3)
    gated.gate.set()
    assert hall.reader.close(PATIENCE_S) == 0
    hall.arena.close()


def test_an_unstarted_reader_can_be_closed(tmp_path: Path) -> None:
    arena = Arena(tmp_path / "arena", ArenaLayout(2, 100), 1)
    reader = Reader(
        {1: ReadTier(memory(), 1)},
        SlotAccess(arena.view, arena.take(1)),
        READERS.create("completion"),
        RealClock(),
        lambda: None,
        ReaderOptions(),
    )
    assert reader.close(0.0) == 0
    arena.close()


def test_whoever_wants_is_told_once_for_what_it_has_not_taken(open_hall: Open) -> None:
    hall = open_hall({1: memory(), 2: memory()})
    for number in range(30):
        hall.want(number)
    end_s = time.monotonic() + PATIENCE_S
    while any(report.backlog_pages or report.reading_pages for report in hall.reader.report()):
        assert time.monotonic() < end_s
        time.sleep(0.005)
    assert hall.times_told == 1
    assert len(hall.reader.take_outcomes()) == 30


def test_wants_cancellations_and_faults_at_once_lose_no_page_and_no_slot(open_hall: Open) -> None:
    shares = {Fault.ERROR: 0.05, Fault.STALL: 0.05, Fault.CORRUPT: 0.05}
    slow = Throttle(2e7, latency_s=0.001, jitter_s=0.002)
    stores = {
        tier: FaultyStore(
            ThrottledStore(memory(), slow, RealClock(), Random(tier)),
            FaultOptions(shares, stall_s=0.15),
            RealClock(),
            Random(tier),
        )
        for tier in (1, 2)
    }
    hall = open_hall(stores, width=3, stall_after_s=0.05, lot_pages=4)
    rng, ends = Random(9), Counter[ReadEnd]()
    for _ in range(12):
        for number in range(40):
            hall.want(number)
        for number in rng.sample(range(40), 5):
            hall.reader.cancel(key(number))
        for number, end in hall.collect(40).items():
            ends[end.end] += 1
            assert end.end is not ReadEnd.READ or hall.content(end) == page(number)
            hall.arena.free([end.slot])
    assert ends.total() == 480
    assert ends[ReadEnd.READ] > 380
    assert hall.reader.close(PATIENCE_S) == 0
    assert hall.arena.free_slots == SLOTS - 6
