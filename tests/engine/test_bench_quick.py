"""Benchmarks that need SGLang, as smokes: their figures claim nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1_500)]


def run_quick(name: str, output: Path) -> dict[str, Any]:
    """The report of `bana eval bench NAME --quick`."""
    argv = [sys.executable, "-m", "bana.cli.main", "eval", "bench", name, "--quick"]
    done = subprocess.run(
        [*argv, "--json", str(output)], capture_output=True, text=True, timeout=1_400, check=False
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(output.read_bytes())
    assert all(figure["met"] is None for figure in report["figures"].values())
    return report


# Four servers, one after the other.
@pytest.mark.full
def test_overhead_runs_both_sides_and_a_control(tmp_path: Path) -> None:
    figures = run_quick("overhead", tmp_path / "overhead.json")["figures"]

    assert {"throughput_vs_stock", "control_stock_vs_stock"} <= set(figures)
    assert figures["bana_tokens_per_s"]["value"] > 0
    assert figures["stock_tokens_per_s"]["value"] > 0
    assert ">= 0.98" in figures["throughput_vs_stock"]["aim"]
    assert ">= 0.95" in figures["throughput_vs_stock"]["aim"]


def test_attention_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    report = run_quick("attention", tmp_path / "attention.json")

    assert any(name.startswith("extend_vs_torch_native[") for name in report["figures"])
    assert any(name.startswith("decode_vs_torch_native[") for name in report["figures"])
    assert report["settings"]["measured_with"]["extent"] == "quick"


# Two servers, one after the other; the pass itself has unit tests.
@pytest.mark.full
def test_a_pass_is_timed_apart_and_tokens_are_counted(tmp_path: Path) -> None:
    figures = run_quick("scheduler", tmp_path / "scheduler.json")["figures"]

    added = [name for name in figures if name.startswith("scheduler_pass_10k_ms[")]
    assert {"budget", "cascade", "edf"} <= {name[:-1].split("[")[1] for name in added}
    assert all(figures[name]["aim"] == "<= 2" for name in added)
    assert figures["throughput_vs_stock"]["value"] > 0
    assert figures["throughput_vs_stock"]["aim"] == ">= 0.98 (median)"


# Two servers with a model that is generated first.
@pytest.mark.full
def test_both_sides_are_offered_both_workloads(tmp_path: Path) -> None:
    report = run_quick("slo", tmp_path / "slo.json")

    for workload in ("conversation", "bursty"):
        for side in ("budget", "fcfs"):
            attained = report["figures"][f"lowest_load_attainment[{workload},{side}]"]
            assert 0 <= attained["low"] <= attained["high"] <= 1
        assert report["figures"][f"light_load_vs_stock[{workload}]"]["value"] > 0
        told = report["settings"]["measured"][workload]
        assert told["tuned_flags"] == "defaults"
        assert told["isolated"]["tpot_ms"] > 0


# Two servers with a model that is generated first.
@pytest.mark.full
def test_the_simulator_is_held_beside_both_sides(tmp_path: Path) -> None:
    report = run_quick("agreement", tmp_path / "agreement.json")

    told = report["settings"]["measured"]["conversation"]
    for side, row in (("budget", "conversation"), ("fcfs", "conversation,fcfs")):
        assert report["figures"][f"live_vs_sim_ttft_error[{row}]"]["value"] >= 0
        assert told[side]["engine"]["tokens_seen"] == "after_next"
        assert told[side]["step_times"]["prefill_token_s"] > 0
        for point in told["points"][side]:
            assert 0 <= point["attainment"]["simulated"] <= 1


# Seven servers, one after the other, with a model that is generated first.
@pytest.mark.full
def test_every_step_restores_from_its_tiers(tmp_path: Path) -> None:
    report = run_quick("kvstream", tmp_path / "kvstream.json")

    told = report["settings"]["measured"]["steps"]
    settings = report["settings"]
    held = settings["documents"] * settings["document_tokens"] // 16
    for name in ("sequential", "batched", "deferred", "second_tier", "completion"):
        pages = told[name]["pages_from"]
        assert sum(pages["tier_1"]) + sum(pages["tier_2"]) >= 0.8 * held
        assert (sum(pages["tier_2"]) > 0) is (name in ("second_tier", "completion"))
    assert told["no_store"]["pages_written"] == {}
    for name in ("no_store", "batched", "completion"):
        assert report["figures"][f"kvstream_throughput[{name}]"]["value"] > 0
        assert report["figures"][f"kvstream_ttft[{name}]"]["value"] > 0
