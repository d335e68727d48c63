"""What a timed pass over a queue with a store is: who is seen, who is held, what stays."""

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
    from sglang_bana.engine.bench_store_pass import (
        StorePassOptions,
        StorePassSamples,
        configured,
        main,
        time_store_passes,
    )
    from sglang_bana.engine.store_pass_stand import StorePassPlan, StorePassStand, Waiting

REQUESTS = 24
HELD = {Waiting.NOBODY: 0, Waiting.SOME: 12, Waiting.SOME_NEWS: 12}


@pytest.fixture
def _configured() -> Iterator[None]:
    """SGLang's configuration, as in a running server."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with configured():
            yield


@pytest.mark.parametrize("waiting", Waiting)
@pytest.mark.usefixtures("_configured")
def test_each_pass_finds_the_same_queue_with_the_same_requests_held(waiting: Waiting) -> None:
    stand = StorePassStand(StorePassPlan(waiting, REQUESTS), 0)
    restorer = stand.scheduler.restorer
    assert restorer is not None
    before = stand.scheduler.conductor.counts.passes
    for _ in range(3):
        assert stand.time_store_ms() > 0
        assert stand.time_plain_ms() > 0
        assert len(restorer.holds) == HELD[waiting]
        assert len(stand.scheduler.waiting_queue) == REQUESTS
    assert len(restorer.linker.wants) == REQUESTS
    assert restorer.counts.faults == restorer.counts.late_holds == 0
    # Each of them was planned, and found no room for the first request.
    assert stand.scheduler.conductor.counts.passes == before + 3
    assert stand.scheduler.running.batch_is_full


@pytest.mark.usefixtures("_configured")
def test_the_request_that_is_tried_is_found_in_the_store() -> None:
    stand = StorePassStand(StorePassPlan(Waiting.NOBODY, REQUESTS), 0)
    stand.time_store_ms()
    assert stand.scheduler.waiting_queue[0].host_hit_length > 0


def test_every_case_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = tmp_path / "passes.json"
    words = ["bench_store_pass", "--json", str(target), "--requests", "20", "--pairs", "3"]
    monkeypatch.setattr(sys, "argv", words)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main() == 0
    samples = msgspec.json.decode(target.read_bytes(), type=dict[str, StorePassSamples])
    assert set(samples) == {waiting.value for waiting in Waiting}
    for both in samples.values():
        assert len(both.store_ms) == len(both.plain_ms) == 3
        assert min(both.store_ms) > 0


@pytest.mark.parametrize("options", [{"requests": 0}, {"requests": 5000}, {"pairs": 0}])
def test_options_that_measure_nothing_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="pairs must be from 1 to 101, requests from 1 to"):
        time_store_passes(StorePassOptions(**options), print)
