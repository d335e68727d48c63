from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from bana.eval.bench.harness import Scale
from bana.eval.bench.load import PointResult
from bana.eval.bench.router_points import judge_point
from bana.eval.bench.router_settings import describe_router_settings
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


def test_settings_name_the_load_and_who_shares_cores() -> None:
    settings = describe_router_settings(Scale.DEFAULT)

    assert settings["streams"] == {"count": 1000, "chunks_per_s": 2.0, "opened_per_s": 400.0}
    assert "client_shares_upstream_cores" in str(settings["placement"])


@pytest.mark.timeout(600)
def test_a_quick_run_gives_every_figure_and_leaves_nothing(tmp_path: Path) -> None:
    output = tmp_path / "router.json"
    argv = [sys.executable, "-m", "bana.cli.main", "eval", "bench", "router", "--quick"]

    done = subprocess.run(
        [*argv, "--json", str(output)], capture_output=True, text=True, timeout=540, check=False
    )

    assert done.returncode == 0, done.stderr
    report = json.loads(output.read_bytes())
    assert set(report["figures"]) >= FIGURES
    assert all(figure["met"] is None for figure in report["figures"].values())
    assert report["figures"]["router_lost_chunks"]["high"] == 0
    assert report["figures"]["router_max_rps"]["value"] > 0
    assert "router_max_rps" in done.stdout
    assert [line for line in list_command_lines() if "bana.eval.bench.null_server" in line] == []


def list_command_lines() -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        found.append(" ".join(process.info["cmdline"] or []))
    return found
