"""Bandwidth counts busy time only, follows the tier, and a stall is no habit."""

from __future__ import annotations

import pytest

from bana.radix_global.tier_meter import TierMeter


def _read(meter: TierMeter, begin_s: float, end_s: float, size_bytes: int = 100) -> None:
    meter.begin(begin_s)
    meter.end("read", size_bytes, end_s)


def test_nothing_is_known_before_anything_was_tried() -> None:
    meter = TierMeter(10.0)
    assert meter.bandwidth_bytes_per_s(5.0) is None
    assert meter.latency_s is None
    assert meter.outcomes() == {}


def test_idle_time_does_not_count() -> None:
    meter = TierMeter(1e6)
    for start_s in (0.0, 100.0, 5_000.0):
        _read(meter, start_s, start_s + 2)
    assert meter.bandwidth_bytes_per_s(1e5) == pytest.approx(50, rel=1e-3)
    assert meter.moved_bytes == 300


def test_reads_side_by_side_share_their_time() -> None:
    meter = TierMeter(1e6)
    for _ in range(4):
        meter.begin(10.0)
    for _ in range(4):
        meter.end("read", 100, 12.0)
    assert meter.bandwidth_bytes_per_s(20.0) == pytest.approx(200, rel=1e-3)


def test_it_follows_a_tier_that_slows_down() -> None:
    meter = TierMeter(10.0)
    now_s = 0.0
    for took_s, expected in ((0.1, 1_000), (1.0, 100)):
        for _ in range(int(60 / took_s)):
            _read(meter, now_s, now_s + took_s)
            now_s += took_s
        assert meter.bandwidth_bytes_per_s(now_s) == pytest.approx(expected, rel=0.1)


def test_a_stall_shows_while_it_lasts() -> None:
    meter = TierMeter(10.0)
    _read(meter, 0.0, 1.0)
    meter.begin(1.0)
    seen = [meter.bandwidth_bytes_per_s(now_s) for now_s in (1.0, 2.0, 11.0, 101.0)]
    values = [value for value in seen if value is not None]
    assert values == sorted(set(values), reverse=True)
    assert values[-1] == pytest.approx(0, abs=0.01)


def test_what_failed_moved_nothing_and_is_counted() -> None:
    meter = TierMeter(10.0)
    _read(meter, 0.0, 1.0)
    meter.begin(1.0)
    meter.end("missing", 0, 1.5)
    assert meter.moved_bytes == 100
    assert meter.outcomes() == {"read": 1, "missing": 1}


def test_latency_follows_and_a_stall_counts_as_no_more_than_the_limit() -> None:
    meter = TierMeter(10.0)
    meter.note_latency(1.0, 5.0)
    assert meter.latency_s == 1.0
    meter.note_latency(1_000.0, 2.0)
    assert meter.latency_s == pytest.approx(1.1)
    for _ in range(100):
        meter.note_latency(0.5, 2.0)
    assert meter.latency_s == pytest.approx(0.5, rel=0.01)


def test_a_latency_of_long_ago_is_not_recent() -> None:
    meter = TierMeter(10.0)
    _read(meter, 0.0, 1.0)
    meter.note_latency(1.0, 5.0)
    assert [meter.recent_latency_s(now_s) for now_s in (11.0, 11.1)] == [1.0, None]
    meter.begin(20.0)
    assert meter.recent_latency_s(25.0) == meter.latency_s == 1.0
