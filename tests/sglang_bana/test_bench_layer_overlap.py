"""What is timed as a load, as a forward pass and as both, and on which cores."""

from __future__ import annotations

import os
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
    from sglang_bana.engine.bench_layer_overlap import (
        FORWARDS,
        SHAPES,
        OverlapOptions,
        OverlapSamples,
        list_placements,
        main,
        time_case,
        time_overlaps,
    )
    from sglang_bana.engine.overlap_stand import (
        LoadShape,
        OverlapStand,
        Placement,
        open_overlap_stand,
    )

SMALL = LoadShape(layers=3, heads=2, head_dim=8, pages=4)


@pytest.fixture(params=list_placements(len(os.sched_getaffinity(0))))
def stand(request: pytest.FixtureRequest) -> Iterator[OverlapStand]:
    with open_overlap_stand(SMALL, request.param) as opened:
        yield opened


def test_each_run_can_be_taken_again_and_again(stand: OverlapStand) -> None:
    stand.tune(2.0)
    samples = time_case(stand, 5)
    for times_ms in msgspec.structs.asdict(samples).values():
        assert len(times_ms) == 5
        assert min(times_ms) > 0


def test_nothing_is_left_behind() -> None:
    cores, files = os.sched_getaffinity(0), set(Path("/dev/shm").iterdir())
    with open_overlap_stand(SMALL, Placement.TOGETHER):
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == cores
    mine = {
        path for path in Path("/dev/shm").iterdir() if path.name.startswith(f"bb-{os.getpid()}")
    }
    assert mine <= files


def test_one_core_shows_nothing_of_two() -> None:
    assert list_placements(1) == (Placement.TOGETHER,)
    assert list_placements(2) == (Placement.APART, Placement.TOGETHER)


def test_every_case_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = tmp_path / "overlap.json"
    words = ["bench_layer_overlap", "--json", str(target), "--rounds", "1", "--pages", "1"]
    monkeypatch.setattr(sys, "argv", words)
    assert main() == 0
    samples = msgspec.json.decode(target.read_bytes(), type=dict[str, OverlapSamples])
    placements = list_placements(len(os.sched_getaffinity(0)))
    assert set(samples) == {
        f"{shape.layout.page_bytes}/{forward}/{placement}"
        for shape in SHAPES
        for forward in FORWARDS
        for placement in placements
    }


@pytest.mark.parametrize("options", [{"rounds": 0}, {"pages": -1}, {"pages": 10_000}])
def test_options_that_measure_nothing_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="rounds must be >= 1, pages from 0 to"):
        time_overlaps(OverlapOptions(**options), print)
