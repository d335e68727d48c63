"""The writer's threads on real stores: sound, stalled, full and failing ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bana.radix_global.stores.directory import DirectoryStore
from bana.radix_global.stores.memory import MemoryOptions, MemoryStore
from bana.radix_global.stores.options import DirectoryOptions
from bana.radix_global.stores.store import (
    PageOrigin,
    Payload,
    ReadOutcome,
    RefreshOutcome,
    Store,
    Write,
)
from bana.radix_global.writer import writer as writer_module
from bana.radix_global.writer.jobs import PageWritten, WriteEnd, WriteJob
from bana.radix_global.writer.options import WriterOptions
from bana.radix_global.writer.writer import Writer
from bana.slo.clock import ManualClock
from bana.slo.errors import StoreError

PAGE_BYTES = 20_000
PATIENCE_S = 60.0
BOTH = 0b110


class RealClock:
    """Seconds as they pass."""

    def now_s(self) -> float:
        return time.monotonic()


class GatedStore(MemoryStore):
    """A tier whose puts stand still until the gate is opened."""

    def __init__(self) -> None:
        super().__init__(MemoryOptions(2**24), ManualClock())
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)

    def put(self, key: bytes, payload: Payload, origin: PageOrigin) -> Write:
        self.entered.release()
        assert self.gate.wait(PATIENCE_S)
        return super().put(key, payload, origin)


class Brittle(MemoryStore):
    """A tier that breaks the protocol: it raises."""

    def put(self, key: bytes, payload: Payload, origin: PageOrigin) -> Write:
        raise RuntimeError("not as agreed")


def memory() -> MemoryStore:
    return MemoryStore(MemoryOptions(2**24), ManualClock())


class Desk:
    """Slots in plain memory with a writer, and its outcomes as they are told."""

    def __init__(self, stores: Mapping[int, Store], **options: Any) -> None:
        self.slots = [bytearray(Random(n).randbytes(PAGE_BYTES)) for n in range(40)]
        self.reads = threading.Event()
        self.told = threading.Event()
        self.writer = Writer(
            stores,
            lambda slot: memoryview(self.slots[slot]),
            lambda _: self.reads.is_set(),
            RealClock(),
            self.told.set,
            WriterOptions(**options),
        )
        self.writer.start()

    def offer(self, number: int, tiers: int = BOTH) -> None:
        origin = PageOrigin((number - 1).to_bytes(16, "big") if number else b"", 7)
        key = number.to_bytes(16, "big")
        self.writer.offer(WriteJob(key, origin, number, PAGE_BYTES, tiers))

    def collect(self, count: int) -> list[PageWritten]:
        """The next `count` outcomes, read only when told of them."""
        ends: list[PageWritten] = []
        end_s = time.monotonic() + PATIENCE_S
        while len(ends) < count:
            assert self.told.wait(max(0.0, end_s - time.monotonic())), f"{len(ends)} of {count}"
            self.told.clear()
            ends += self.writer.take_outcomes()
        assert len(ends) == count
        return ends


Open = Callable[..., Desk]


@pytest.fixture(autouse=True)
def _no_second_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle threads wait to be told: what they are not told of is never done."""
    monkeypatch.setattr(writer_module, "IDLE_S", 1_000.0)


def let_idle() -> None:
    """Leave threads the time to find that there is nothing to do."""
    time.sleep(0.1)


@pytest.fixture
def open_desk() -> Iterator[Open]:
    """A function: tiers in, a started writer out, closed at the end."""
    desks: list[Desk] = []

    def open_one(stores: Mapping[int, Store], **options: Any) -> Desk:
        desks.append(Desk(stores, **options))
        return desks[-1]

    yield open_one
    for desk in desks:
        assert desk.writer.close(PATIENCE_S) == 0


def test_pages_stand_on_their_tiers_with_where_they_belong(open_desk: Open, tmp_path: Path) -> None:
    options = DirectoryOptions(2**24, segment_bytes=2**18)
    disk = DirectoryStore(tmp_path / "tier", options, Random(1))
    stores: dict[int, Store] = {1: memory(), 2: disk}
    desk = open_desk(stores)
    for number in range(40):
        desk.offer(number)
    ends = desk.collect(80)
    assert {end.end for end in ends} == {WriteEnd.WRITTEN}
    assert sum(end.is_last for end in ends) == 40
    for store in stores.values():
        held = {page.key: page.origin for page in store.pages()}
        for number in range(40):
            target = bytearray(PAGE_BYTES)
            key = number.to_bytes(16, "big")
            assert store.read(key, memoryview(target)) is ReadOutcome.READ
            assert target == desk.slots[number]
            assert held[key].namespace == 7
    assert disk.refresh().outcome is RefreshOutcome.WHOLE
    disk.close()


def test_writes_wait_for_reads_and_come_when_those_are_done(open_desk: Open) -> None:
    desk = open_desk({1: memory(), 2: memory()}, defer_s=PATIENCE_S, give_up_s=PATIENCE_S)
    desk.reads.set()
    for number in range(5):
        desk.offer(number)
    time.sleep(0.1)
    assert desk.writer.take_outcomes() == []
    assert [report.backlog_pages for report in desk.writer.report()] == [5, 5]
    desk.reads.clear()
    assert {end.end for end in desk.collect(10)} == {WriteEnd.WRITTEN}


def test_reads_without_an_end_do_not_keep_the_first_copy_away(open_desk: Open) -> None:
    store = memory()
    desk = open_desk({1: store}, defer_s=0.05)
    desk.reads.set()
    desk.offer(3, 0b10)
    (end,) = desk.collect(1)
    assert (end.end, end.is_last) == (WriteEnd.WRITTEN, True)
    assert store.holds(end.key)


def test_a_stalled_tier_delays_no_other_and_gives_up_what_waits(open_desk: Open) -> None:
    gated = GatedStore()
    desk = open_desk({1: gated, 2: memory()}, give_up_s=1.5, defer_s=0.0)
    let_idle()
    desk.offer(0, 0b10)
    assert gated.entered.acquire(timeout=PATIENCE_S)
    for number in range(1, 6):
        desk.offer(number)
    ends = desk.collect(10)
    by_tier = {tier: {end.end for end in ends if end.tier == tier} for tier in (1, 2)}
    assert by_tier == {1: {WriteEnd.CROWDED_OUT}, 2: {WriteEnd.WRITTEN}}
    assert sum(end.is_last for end in ends) == 5
    gated.gate.set()
    (last,) = desk.collect(1)
    assert (last.slot, last.end) == (0, WriteEnd.WRITTEN)


def test_a_full_tier_and_one_that_raises_are_outcomes(open_desk: Open) -> None:
    small = MemoryStore(MemoryOptions(1_000), ManualClock())
    desk = open_desk({1: small, 2: Brittle(MemoryOptions(2**20), ManualClock())})
    desk.offer(1)
    desk.offer(2)
    ends = {(end.slot, end.tier): end.end for end in desk.collect(4)}
    assert {ends[slot, 1] for slot in (1, 2)} == {WriteEnd.REFUSED}
    assert {ends[slot, 2] for slot in (1, 2)} == {WriteEnd.FAILED}


def test_what_a_tier_gave_up_is_told(open_desk: Open) -> None:
    small = MemoryStore(MemoryOptions(int(2.5 * PAGE_BYTES)), ManualClock())
    desk = open_desk({1: small})
    for number in range(4):
        desk.offer(number, 0b10)
    lost = [key for end in desk.collect(4) for key in end.lost]
    assert lost == [number.to_bytes(16, "big") for number in (0, 1)]


def test_closing_beside_a_stalled_tier_takes_no_longer_than_allowed() -> None:
    gated = GatedStore()
    desk = Desk({1: gated})
    desk.offer(0, 0b10)
    assert gated.entered.acquire(timeout=PATIENCE_S)
    desk.offer(1, 0b10)
    begun_s = time.monotonic()
    assert desk.writer.close(0.2) >= 1
    assert time.monotonic() - begun_s < PATIENCE_S / 2
    assert [(end.slot, end.end) for end in desk.writer.take_outcomes()] == [
        (1, WriteEnd.CROWDED_OUT)
    ]
    with pytest.raises(StoreError, match="closed"):
        desk.offer(2, 0b10)
    gated.gate.set()
    assert desk.writer.close(PATIENCE_S) == 0


def test_an_unstarted_writer_can_be_closed() -> None:
    writer = Writer(
        {1: memory()},
        lambda _: memoryview(bytearray(1)),
        lambda _: False,
        RealClock(),
        lambda: None,
        WriterOptions(),
    )
    assert writer.close(0.0) == 0
