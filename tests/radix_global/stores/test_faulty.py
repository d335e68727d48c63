"""Faults come as often as asked for, the same with the same seed, and never as a wrong page."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.stores.faulty import Fault, FaultOptions, FaultyStore
from bana.radix_global.stores.memory import MemoryOptions, MemoryStore
from bana.radix_global.stores.store import PageOrigin, ReadOutcome, WriteOutcome
from bana.slo.clock import ManualClock
from bana.slo.errors import ConfigError

KEY = bytes(KEY_BYTES)
PAGE = bytes(range(101))
ORIGIN = PageOrigin(b"", 1)


class CountingClock:
    """Knows only how long it was waited for."""

    def __init__(self) -> None:
        self.slept_s = 0.0

    def now_s(self) -> float:
        return self.slept_s

    def sleep(self, duration_s: float) -> None:
        self.slept_s += duration_s


def _faulty(seed: int, clock: CountingClock, **shares: float) -> FaultyStore:
    inner = MemoryStore(MemoryOptions(10_000), ManualClock())
    inner.put(KEY, PAGE, ORIGIN)
    options = FaultOptions({Fault(name): share for name, share in shares.items()}, stall_s=30)
    return FaultyStore(inner, options, clock, Random(seed))


def _read(store: FaultyStore) -> tuple[ReadOutcome, bytes]:
    target = bytearray(len(PAGE))
    return store.read(KEY, memoryview(target)), bytes(target)


def test_faults_come_as_often_as_asked_for_and_are_counted() -> None:
    clock = CountingClock()
    store = _faulty(1, clock, error=0.1, stall=0.2, short=0.05, corrupt=0.15)
    outcomes = Counter(_read(store)[0] for _ in range(4_000))
    assert outcomes[ReadOutcome.FAILED] == pytest.approx(400, rel=0.2)
    assert outcomes[ReadOutcome.SHORT] == pytest.approx(200, rel=0.2)
    assert outcomes[ReadOutcome.CORRUPT] == pytest.approx(600, rel=0.2)
    assert outcomes[ReadOutcome.READ] == 4_000 - sum(
        outcomes[o] for o in (ReadOutcome.FAILED, ReadOutcome.SHORT, ReadOutcome.CORRUPT)
    )
    counts = store.stats().counts
    assert counts["injected_error"] == outcomes[ReadOutcome.FAILED]
    assert counts["injected_short"] == outcomes[ReadOutcome.SHORT]
    assert counts["injected_corrupt"] == outcomes[ReadOutcome.CORRUPT]
    assert counts["injected_stall"] == pytest.approx(800, rel=0.2)
    assert clock.slept_s == counts["injected_stall"] * 30


def test_one_seed_gives_one_story() -> None:
    shares = {"error": 0.3, "short": 0.3, "corrupt": 0.3}
    stories = []
    for seed in (5, 5, 6):
        store = _faulty(seed, CountingClock(), **shares)
        stories.append([_read(store)[0] for _ in range(100)])
    assert stories[0] == stories[1] != stories[2]


@pytest.mark.parametrize("fault", ["short", "corrupt"])
def test_a_damaged_target_shows_it_and_the_page_itself_stays(fault: str) -> None:
    store = _faulty(1, CountingClock(), **{fault: 1.0})
    outcome, content = _read(store)
    assert outcome is ReadOutcome(fault)
    assert content != PAGE
    assert store.holds(KEY)


def test_a_stalled_read_comes_late_but_right() -> None:
    clock = CountingClock()
    assert _read(_faulty(1, clock, stall=1.0)) == (ReadOutcome.READ, PAGE)
    assert clock.slept_s == 30


def test_a_failed_put_wrote_nothing() -> None:
    store = _faulty(1, CountingClock(), error=1.0)
    other = bytes([1]) * KEY_BYTES
    assert store.put(other, PAGE, ORIGIN).outcome is WriteOutcome.FAILED
    assert not store.holds(other)


@pytest.mark.parametrize(
    ("shares", "stall_s"),
    [
        ({Fault.ERROR: -0.1}, 0),
        ({Fault.ERROR: 0.6, Fault.SHORT: 0.6}, 0),
        ({Fault.ERROR: float("nan")}, 0),
        ({}, -1),
    ],
)
def test_shares_that_are_none_are_refused(shares: dict[Fault, float], stall_s: float) -> None:
    with pytest.raises(ConfigError, match="allowed"):
        FaultOptions(shares, stall_s)
