from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bana.slo.errors import ConfigError

with warnings.catch_warnings():
    # SGLang warns at import about accelerators that are not there.
    warnings.simplefilter("ignore")
    from sglang.srt.runtime_context import get_context

    from sglang_bana.engine.bench_scheduler import (
        CASES,
        PassOptions,
        PassSamples,
        main,
        time_passes,
    )
    from sglang_bana.engine.scheduling_stand import Pressure, QueuePlan, SchedulingStand

REQUESTS = 40


@pytest.fixture
def configured() -> Iterator[None]:
    """SGLang's configuration, as in a running server."""
    with get_context().override_server_args():
        yield


def stand_of(order: str, pressure: Pressure) -> SchedulingStand:
    return SchedulingStand(QueuePlan(order, pressure, REQUESTS), 0)


@pytest.mark.parametrize(("order", "pressure"), CASES)
@pytest.mark.usefixtures("configured")
def test_each_pass_orders_the_queue_anew(order: str, pressure: Pressure) -> None:
    stand = stand_of(order, pressure)
    assert stand.time_bana_ms() > 0
    ordered = list(stand.scheduler.waiting_queue)
    assert stand.time_stock_ms() > 0
    arrived = list(stand.scheduler.waiting_queue)
    assert {id(req) for req in ordered} == {id(req) for req in arrived}
    assert [req.rid for req in arrived] == [f"r{index}" for index in range(REQUESTS)]
    if pressure is Pressure.ON_TIME:
        assert ordered != arrived
        assert stand.conductor.counts.demotions == 0


@pytest.mark.usefixtures("configured")
def test_whoever_is_late_is_demoted_in_the_pass_that_is_timed() -> None:
    turning, late = (stand_of("budget", p) for p in (Pressure.TURNING_LATE, Pressure.LATE))
    assert turning.conductor.counts.demotions == 0
    assert late.conductor.counts.demotions == REQUESTS
    for _ in range(2):
        turning.time_bana_ms()
        late.time_bana_ms()
    assert turning.conductor.counts.demotions == REQUESTS
    assert late.conductor.counts.demotions == REQUESTS
    assert turning.conductor.counts.passes == 1


def test_every_case_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = tmp_path / "passes.json"
    words = ["bench_scheduler", "--json", str(target), "--requests", "20", "--pairs", "3"]
    monkeypatch.setattr(sys, "argv", words)

    assert main() == 0

    samples = msgspec.json.decode(target.read_bytes(), type=dict[str, PassSamples])
    assert len(samples) == len(CASES)
    assert {"budget", "budget, turning late", "edf, late"} <= set(samples)
    for both in samples.values():
        assert len(both.bana_ms) == len(both.stock_ms) == 3
        assert min(both.bana_ms) > 0


@pytest.mark.parametrize("options", [{"requests": 0}, {"requests": 10**6}, {"pairs": 0}])
def test_options_that_measure_nothing_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="pairs must be >= 1, requests from 1 to"):
        time_passes(PassOptions(**options), print)
