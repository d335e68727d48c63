"""`bana eval live` and `compare` as a user meets them, against a stub server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TIMEOUT_S = 120
BANA = [sys.executable, "-m", "bana.cli.main", "eval"]
QUICK = [
    *("--rate", "20", "--duration", "1.5", "--input-tokens", "8", "--output-tokens", "4"),
    *("--ttft-ms", "60000", "--set", "workload.arrivals.warmup_s=0"),
    *("--set", "client.probe_rps=0", "--set", "client.lateness_limit_ms=60000"),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    argv = [sys.executable, "-m", "bana.eval.stub", "--json-ready", "--settings", '{"chunks": 4}']
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


def run(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*BANA, *argv], capture_output=True, text=True, timeout=TIMEOUT_S, cwd=cwd
    )


def test_a_run_ends_with_the_answer_and_leaves_a_report(url: str, tmp_path: Path) -> None:
    done = run("live", url, *QUICK, "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "requests met their limits" in done.stdout.splitlines()[-1]
    assert "report: here/report.html" in done.stderr
    kept = {p.name for p in (tmp_path / "here" / "server-seed0").iterdir()}
    assert {"report.html", "summary.json", "requests.jsonl", "llm-d-report.json"} <= kept


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_openai_endpoints_are_measured_too(url: str, tmp_path: Path, endpoint: str) -> None:
    done = run("live", url, *QUICK, "--endpoint", endpoint, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [summary] = json.loads(done.stdout)["runs"].values()
    assert summary["overall"]["met"] == summary["overall"]["offered"] > 0


def test_two_runs_of_one_workload_are_compared_and_others_refused(url: str, tmp_path: Path) -> None:
    for name, more in (("a", []), ("b", []), ("c", ["--seed", "7"])):
        done = run("live", url, *QUICK, *more, "--out", name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    compared = run("compare", "a", "b", "--out", "both.html", cwd=tmp_path)
    assert compared.returncode == 0, compared.stderr
    assert "ttft_mean_s" in compared.stdout
    assert (tmp_path / "both.html").stat().st_size > 1000
    refused = run("compare", "a", "c", cwd=tmp_path)
    assert refused.returncode == 2
    assert "different seeds" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_ctrl_c_writes_what_was_measured(url: str, tmp_path: Path) -> None:
    argv = [*BANA, "live", url, *QUICK, "--duration", "600", "--out", "here"]
    process = subprocess.Popen(
        argv, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("server-seed0:"):
            break
    time.sleep(2)
    os.kill(process.pid, signal.SIGINT)
    answer, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert "interrupted" in answer.splitlines()[-1]
    summary = json.loads((tmp_path / "here" / "server-seed0" / "summary.json").read_bytes())
    assert summary["summary"]["is_interrupted"]
    assert summary["summary"]["overall"]["offered"] > 0


def test_requests_are_written_with_a_server_or_without(url: str, tmp_path: Path) -> None:
    alone = run("live", *QUICK, "--export-requests", "a.jsonl", cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]
    assert "python -m sglang.bench_serving" in alone.stderr
    more = ["--export-requests", "b.jsonl", "--out", "here"]
    done = run("live", url, *QUICK, *more, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"--base-url {url} " in done.stderr
    assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "a.jsonl").read_bytes()
    again = run("live", url, "--trace", "b.jsonl", *QUICK[8:], "--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    [summary] = json.loads(again.stdout)["runs"].values()
    lines = (tmp_path / "b.jsonl").read_text().splitlines()
    assert summary["overall"]["met"] == summary["overall"]["offered"] == len(lines) > 0
    refused = run("live", url, *QUICK, "--export-requests", "b.jsonl", cwd=tmp_path)
    assert (refused.returncode, "exists already" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["live"], "exactly one of the two"),
        (["live", "ftp://x"], "cannot send to 'ftp://x'"),
        (["live", "http://127.0.0.1:9", *QUICK], "is the server up"),
        (["live", "http://127.0.0.1:9", "--rate", "-1"], "rate_rps=-1.0"),
        (["live", "http://127.0.0.1:9", "--rates", "1,two"], "numbers above 0 with commas"),
        (["live", "--start", "none.toml"], "no variant in 'none.toml'"),
        (["live", "http://127.0.0.1:9", "--trace", "none.csv"], "none.csv"),
        (["compare", "a"], "name at least two"),
        (["compare", "a", "b"], "no run in 'a'"),
    ],
)
def test_what_cannot_be_done_is_one_line(tmp_path: Path, argv: list[str], part: str) -> None:
    done = run(*argv, cwd=tmp_path)
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert part in errors[0]
    assert list(tmp_path.iterdir()) == []
