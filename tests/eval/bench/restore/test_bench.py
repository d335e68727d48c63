"""The sweep of the restore benchmark: what it divides by what, when it proves nothing, a smoke."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bana.eval.bench.errors import BenchError
from bana.eval.bench.harness import BenchRequest, Scale, run_bench
from bana.eval.bench.restore.bench import RESTORE, measure_ttfts, read_ttft_s
from bana.eval.bench.restore.figures import SweepPoint, list_figures, require_cover
from bana.eval.bench.restore.settings import FIXED, NO_STORE, PLANNED, SCALES, build_scene
from bana.eval.simulator.hardware import build_hardware
from bana.eval.simulator.points import Point, PointRunner
from bana.eval.simulator.spec import Segment

QUICK = SCALES[Scale.QUICK]


def point(speed: str, **ttft_s: float) -> SweepPoint:
    """Three seeds, all policies a second where nothing else is said."""
    names = (PLANNED, NO_STORE, *FIXED)
    said = {name: ttft_s.get(name.replace("-", "_"), 1.0) for name in names}
    return SweepPoint("light", speed, {n: [v, 2 * v, 3 * v] for n, v in said.items()})


def test_the_best_fixed_rule_is_that_of_the_point() -> None:
    slow = point("1GB/s", always=9.0, never=0.9, no_store=0.95)
    fast = point("30GB/s", never=2.0, always=1.2, arrived=1.1, timeout=1.3, no_store=2.0)
    figures = dict(list_figures("simulated", [slow, fast], seed=0))
    assert slow.best_fixed == "never"
    assert figures["restore_vs_best_fixed[simulated,light,1GB/s]"].value == pytest.approx(0.9)
    assert figures["restore_vs_best_fixed[simulated,light,30GB/s]"].value == pytest.approx(1.1)
    worst = figures["restore_vs_best_fixed[simulated]"]
    assert (worst.value, worst.met) == (pytest.approx(0.9), False)
    cost = figures["ttft_vs_no_store[simulated]"]
    assert (cost.value, cost.met) == (pytest.approx(1 / 0.95), False)
    assert figures["ttft_vs_planned[always,simulated,light,1GB/s]"].value == pytest.approx(9.0)
    floor = figures["ttft_vs_floor[planned,simulated,light,30GB/s]"]
    assert floor.value == pytest.approx((2.0 + 1.2) / (2.0 * 1.2))


def test_a_sweep_without_a_bad_rule_proves_nothing() -> None:
    bad_never, bad_always = point("30GB/s", never=1.2), point("1GB/s", always=1.5)
    require_cover([bad_never, bad_always], 0.1)
    with pytest.raises(BenchError, match=r"always takes at most 1\.000 .* needed: 1\.1"):
        require_cover([bad_never], 0.1)
    with pytest.raises(BenchError, match="never takes at most"):
        require_cover([bad_always, point("1GB/s", never=1.09)], 0.1)


def test_policies_meet_the_same_requests_and_never_is_no_store() -> None:
    ttfts = measure_ttfts(QUICK, "light", 1e10, 3, (NO_STORE, "never", PLANNED))
    assert ttfts[NO_STORE] == ttfts["never"] != ttfts[PLANNED]
    assert measure_ttfts(QUICK, "light", 1e10, 3, (PLANNED,))[PLANNED] == ttfts[PLANNED]


def test_a_mean_of_those_who_were_served_is_no_figure() -> None:
    settings = msgspec.structs.replace(QUICK, loads={"flood": 60.0})
    scene = msgspec.structs.replace(build_scene(settings, 1e9), drain_s=0.5)
    runner = PointRunner(scene, build_hardware(scene))
    with pytest.raises(BenchError, match="a mean TTFT needs all of them"):
        read_ttft_s(runner.measure(Point("always", Segment(0), 60.0)))


def test_the_default_sweep_spans_more_than_a_tenfold_bandwidth() -> None:
    for scale in (Scale.DEFAULT, Scale.FULL):
        settings = SCALES[scale]
        assert settings.covers
        assert settings.seeds >= 5
        assert max(settings.bytes_per_s) >= 10 * min(settings.bytes_per_s)


def test_a_smoke_runs_and_claims_nothing(tmp_path: Path) -> None:
    # The other part starts engines.
    request = BenchRequest(tmp_path / "restore.json", scale=Scale.QUICK, parts=("simulated",))
    report = run_bench(RESTORE, request, lambda line: None)
    assert report.settings["parts"] == ["simulated"]
    rows = {f"light,{speed / 1e9:g}GB/s" for speed in QUICK.bytes_per_s}
    for name in ("restore_vs_best_fixed", "ttft_vs_no_store"):
        assert {f"{name}[simulated,{row}]" for row in rows} < set(report.figures)
        assert report.figures[f"{name}[simulated]"].met is None
    assert all(figure.value > 0 for figure in report.figures.values())
