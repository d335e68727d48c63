from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import msgspec
import psutil
import pytest

from bana.eval.bench.harness import Scale
from bana.eval.bench.load import PointResult
from bana.eval.bench.pairs import Pair
from bana.eval.bench.router import describe_bounds
from bana.eval.bench.router_points import bound_outstanding, judge_point
from bana.eval.bench.router_settings import SCALES, describe_router_settings
from bana.eval.bench.search import Verdict

LIMIT_S = 0.010
LATE_S = 0.0025
GOOD = PointResult(
    offered=100,
    failed=0,
    is_cut=False,
    latency_p50_s=0.002,
    latency_p99_s=0.009,
    first_byte_p50_s=0.001,
    lateness_p99_s=0.001,
    chunks_asked=50,
    chunks_got=50,
    streams_failed=0,
    first_error=None,
)
FIGURES = {
    "router_added_p50_ms",
    "router_max_rps",
    "router_rps_vs_sglang_router",
    "router_delivered_share",
    "router_lost_chunks",
    "sglang_router_max_rps",
    "direct_max_rps",
    "client_lateness_p99_ms",
}


def test_a_good_point_is_held_even_by_a_late_client() -> None:
    assert judge_point(GOOD, LIMIT_S, LATE_S) is Verdict.HELD
    late = msgspec.structs.replace(GOOD, lateness_p99_s=1.0)
    assert judge_point(late, LIMIT_S, LATE_S) is Verdict.HELD


@pytest.mark.parametrize(
    "change",
    [
        {"latency_p99_s": 0.011},
        {"is_cut": True},
        {"chunks_got": 49},
        {"streams_failed": 1},
        {"latency_p99_s": float("inf"), "failed": 2},
    ],
)
def test_what_is_slow_failed_or_lost_is_not_held(change: dict[str, float]) -> None:
    bad = msgspec.structs.replace(GOOD, **change)
    assert judge_point(bad, LIMIT_S, LATE_S) is Verdict.EXCEEDED
    late = msgspec.structs.replace(bad, lateness_p99_s=0.003)
    assert judge_point(late, LIMIT_S, LATE_S) is Verdict.CLIENT_LATE


@pytest.mark.parametrize("rate_rps", [20.0, 500.0, 8_000.0])
@pytest.mark.parametrize("limit_s", [0.005, 0.1, 1.0])
def test_a_point_is_cut_off_only_when_its_p99_is_lost(rate_rps: float, limit_s: float) -> None:
    window_s = 5.0
    bound = bound_outstanding(rate_rps, limit_s, window_s)

    # Even if half as many again as the mean came within the last `limit_s`, the others are late.
    late = bound - 1.5 * rate_rps * limit_s
    assert late > 0.01 * rate_rps * window_s


def rates_of(*bounds: tuple[float, float]) -> list[Pair]:
    return [
        Pair({"is_not_limited_by_router": ours}, {"is_not_limited_by_router": theirs})
        for ours, theirs in bounds
    ]


def test_a_bound_of_the_baseline_bounds_the_ratio_from_above() -> None:
    assert describe_bounds(rates_of((0.0, 0.0), (0.0, 0.0))) == {}
    assert describe_bounds(rates_of((1.0, 0.0))) == {
        "router_max_rps_is_a_lower_bound": "in 1 of 1 searches"
    }
    assert describe_bounds(rates_of((0.0, 1.0), (0.0, 0.0))) == {
        "sglang_router_max_rps_is_a_lower_bound": "in 1 of 2 searches",
        "router_rps_vs_sglang_router_is_an_upper_bound": "in 1 of 2 searches",
    }


@pytest.mark.parametrize("scale", [Scale.DEFAULT, Scale.FULL])
def test_what_claims_something_has_pairs_and_trials_enough(scale: Scale) -> None:
    settings = SCALES[scale]

    assert min(settings.added_pairs, settings.other_added_pairs, settings.search_pairs) >= 5
    assert settings.search.trials >= 3


def test_settings_name_the_load_and_who_shares_cores() -> None:
    settings = describe_router_settings(Scale.DEFAULT)

    assert settings["streams"] == {"count": 1000, "chunks_per_s": 2.0, "opened_per_s": 400.0}
    assert "client_shares_upstream_cores" in str(settings["placement"])


@pytest.mark.timeout(600)
def test_a_quick_run_gives_every_figure_and_leaves_nothing(tmp_path: Path) -> None:
    output = tmp_path / "router.json"
    argv = [sys.executable, "-m", "bana.cli.main", "eval", "bench", "router", "--quick"]
    argv += ["--json", str(output)]
    mark = uuid.uuid4().hex
    environment = {**os.environ, "BENCH_TEST_MARK": mark}

    done = subprocess.run(
        argv, env=environment, capture_output=True, text=True, timeout=540, check=False
    )

    assert done.returncode == 0, done.stderr
    report = json.loads(output.read_bytes())
    assert set(report["figures"]) >= FIGURES
    assert all(figure["met"] is None for figure in report["figures"].values())
    assert report["figures"]["router_lost_chunks"]["high"] == 0
    assert report["figures"]["router_max_rps"]["value"] > 0
    assert "router_max_rps" in done.stdout
    assert list_marked(mark) == []


def list_marked(mark: str) -> list[list[str]]:
    """Command lines of processes that inherited `mark`, wherever they went."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("BENCH_TEST_MARK") == mark:
                found.append(process.cmdline())
    return found
