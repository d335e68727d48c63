from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bana.eval.bench.registry import BENCHES, find_bench
from bana.slo.errors import ConfigError

PROGRAM = [sys.executable, "-m", "bana.cli.main", "eval", "bench"]


def run_bench_command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_an_unknown_benchmark_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    done = run_bench_command("ruoter", "--json", str(tmp_path / "x.json"))

    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    for word in ("'ruoter'", *BENCHES, "did you mean 'router'"):
        assert word in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["router"], "--json FILE"),
        (["router", "--quick", "--full", "--json", "x.json"], "exclude each other"),
        (["router", "--quick", "--json", "no/such/folder/x.json"], "existing folder"),
        (["router", "--part", "all", "--json", "x.json"], "unknown part 'all' (known: none)"),
        (["slo", "--part", "brusty", "--json", "x.json"], "did you mean 'bursty'?"),
    ],
)
def test_unusable_words_are_one_line_and_status_2(words: list[str], reason: str) -> None:
    done = run_bench_command(*words)

    assert done.returncode == 2
    assert reason in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_run_that_proves_nothing_is_status_1_without_a_report(tmp_path: Path) -> None:
    one_core = "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    program = f"{one_core}from bana.cli.main import run; sys.argv[0] = 'bana'; run()"
    argv = [sys.executable, "-c", program, "eval", "bench", "router", "--quick", "--json"]

    done = subprocess.run(
        [*argv, str(tmp_path / "x.json")], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 1
    assert "at least 2 usable cores, found 1" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_list_names_every_benchmark_with_what_it_answers() -> None:
    done = run_bench_command("list")

    assert done.returncode == 0
    for name, entry in BENCHES.items():
        assert name in done.stdout
        assert entry.help in done.stdout


def test_find_refuses_what_it_does_not_know() -> None:
    assert find_bench("router") is BENCHES["router"]
    with pytest.raises(ConfigError, match="known: agreement, attention, client, cluster_cache, kv"):
        find_bench("speed")


@pytest.mark.timeout(200)
def test_an_interrupt_keeps_the_trials_and_leaves_no_process(tmp_path: Path) -> None:
    output = tmp_path / "router.json"
    partial = tmp_path / "router.json.partial.jsonl"
    argv = [*PROGRAM, "router", "--quick", "--json", str(output)]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    try:
        deadline_s = time.monotonic() + 120
        while not (partial.exists() and partial.read_bytes()) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        family = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=70)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 130, said
    assert "takes up where it was stopped" in said
    assert family
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []
    assert not output.exists()
    assert json.loads(partial.read_text().splitlines()[0])["values"]["max_rps"] > 0
