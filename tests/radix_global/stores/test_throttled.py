"""How long a throttled tier takes, on a clock that passes only by being waited for."""

from __future__ import annotations

from random import Random

import pytest

from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.stores.memory import MemoryOptions, MemoryStore
from bana.radix_global.stores.store import PageOrigin, ReadOutcome, WriteOutcome
from bana.radix_global.stores.throttled import Throttle, ThrottledStore
from bana.slo.clock import ManualClock
from bana.slo.errors import ConfigError

KEY, OTHER = bytes(KEY_BYTES), bytes([1]) * KEY_BYTES
PAGE = bytes(range(250)) * 2
ORIGIN = PageOrigin(b"", 1)


class PassingClock:
    """Time passes by being waited for; `is_frozen` shows what several waited for at once."""

    def __init__(self) -> None:
        self._now_s = 100.0
        self.is_frozen = False
        self.slept_s: list[float] = []

    def now_s(self) -> float:
        return self._now_s

    def sleep(self, duration_s: float) -> None:
        self.slept_s.append(duration_s)
        self._now_s += 0 if self.is_frozen else duration_s


def _throttle(clock: PassingClock, throttle: Throttle) -> ThrottledStore:
    inner = MemoryStore(MemoryOptions(10_000), ManualClock())
    inner.put(KEY, PAGE, ORIGIN)
    return ThrottledStore(inner, throttle, clock, Random(1))


def _read(store: ThrottledStore, key: bytes = KEY) -> ReadOutcome:
    return store.read(key, memoryview(bytearray(len(PAGE))))


def test_bytes_take_their_time_on_the_line_and_latency_comes_on_top() -> None:
    clock = PassingClock()
    store = _throttle(clock, Throttle(1_000, latency_s=0.25))
    assert _read(store) is ReadOutcome.READ
    assert store.put(OTHER, PAGE, ORIGIN).outcome is WriteOutcome.WRITTEN
    assert clock.slept_s == pytest.approx([0.75, 0.75])


def test_reads_and_writes_of_one_moment_share_the_line_but_not_the_latency() -> None:
    clock = PassingClock()
    clock.is_frozen = True
    store = _throttle(clock, Throttle(1_000, latency_s=0.25))
    _read(store)
    store.put(OTHER, PAGE, ORIGIN)
    _read(store)
    assert clock.slept_s == pytest.approx([0.75, 1.25, 1.75])


def test_an_idle_line_saves_nothing_up() -> None:
    clock = PassingClock()
    store = _throttle(clock, Throttle(1_000))
    _read(store)
    clock.sleep(60)
    _read(store)
    assert clock.slept_s == pytest.approx([0.5, 60, 0.5])


def test_what_moves_no_bytes_costs_latency_only() -> None:
    clock = PassingClock()
    store = _throttle(clock, Throttle(1_000, latency_s=0.25))
    assert _read(store, OTHER) is ReadOutcome.MISSING
    assert store.read(KEY, memoryview(bytearray(3))) is ReadOutcome.WRONG_LENGTH
    assert store.put(KEY, PAGE, ORIGIN).outcome is WriteOutcome.PRESENT
    assert clock.slept_s == pytest.approx([0.25] * 3)


def test_jitter_stays_in_its_range_and_varies() -> None:
    clock = PassingClock()
    store = _throttle(clock, Throttle(1e12, latency_s=1.0, jitter_s=0.5))
    for _ in range(200):
        _read(store)
    assert 1.0 <= min(clock.slept_s) < 1.1
    assert 1.4 < max(clock.slept_s) <= 1.5 + 1e-6


def test_an_inner_store_that_is_slower_is_not_waited_for_twice() -> None:
    clock = PassingClock()

    class Slow(MemoryStore):
        def read(self, key: bytes, target: memoryview) -> ReadOutcome:
            clock.sleep(9.0)
            return super().read(key, target)

    inner = Slow(MemoryOptions(10_000), ManualClock())
    inner.put(KEY, PAGE, ORIGIN)
    _read(ThrottledStore(inner, Throttle(1_000, latency_s=0.25), clock, Random(1)))
    assert clock.slept_s == [9.0]


@pytest.mark.parametrize(
    "bad",
    [
        {"bandwidth_bytes_per_s": 0},
        {"bandwidth_bytes_per_s": -1},
        {"bandwidth_bytes_per_s": float("nan")},
        {"bandwidth_bytes_per_s": 1, "latency_s": -1},
        {"bandwidth_bytes_per_s": 1, "jitter_s": float("nan")},
    ],
)
def test_no_such_tier(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="allowed"):
        Throttle(**bad)
