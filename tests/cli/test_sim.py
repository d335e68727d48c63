"""`bana eval sim` and `replay` as a user meets them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TIMEOUT_S = 120
BANA = [sys.executable, "-m", "bana.cli.main", "eval"]
SCENES = Path(__file__).parents[1] / "sim"
STEADY = str(SCENES / "steady.toml")


def run(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*BANA, *argv], capture_output=True, text=True, timeout=TIMEOUT_S, cwd=cwd
    )


def test_a_scene_ends_with_the_answer_and_all_of_it_as_json(tmp_path: Path) -> None:
    argv = ["--set", "grid.rates_rps=[8, 150]", "--json", "all.json"]
    done = run("sim", STEADY, *argv, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "budget carries most at 90 % attainment" in done.stdout.splitlines()[-1]
    assert "fcfs seed0: attains" in done.stderr
    found = json.loads((tmp_path / "all.json").read_bytes())
    assert len(found["measured"]) == 4
    assert found["baseline"] == "fcfs"
    assert len(found["compared"]) == 2
    assert found["max_rates"]["budget"]["mean_rps"] > found["max_rates"]["fcfs"]["mean_rps"]
    assert found["compared"][0]["summary"]["quartiles"][3]["attainment"]["value"] <= 1
    again = run("sim", STEADY, *argv, "--policy", "budget", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    alone = json.loads((tmp_path / "all.json").read_bytes())
    hashes = [m["event_hash"] for m in found["measured"] if m["policy"] == "budget"]
    assert [m["event_hash"] for m in alone["measured"]] == hashes


def test_decisions_are_written_and_replayed(tmp_path: Path) -> None:
    argv = ["--policy", "budget", "--decisions", "log.jsonl"]
    done = run("sim", STEADY, *argv, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    replayed = run("replay", "log.jsonl", cwd=tmp_path)
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout.endswith("decisions, 0 differ\n")
    text = (tmp_path / "log.jsonl").read_text()
    (tmp_path / "log.jsonl").write_text(text.replace('"head":[0]', '"head":[1]', 1))
    tampered = run("replay", "log.jsonl", cwd=tmp_path)
    assert tampered.returncode == 1
    assert tampered.stdout.endswith("decisions, 1 differ\n")
    assert "order logged" in tampered.stderr


def test_ctrl_c_writes_what_was_measured(tmp_path: Path) -> None:
    rates = "grid.rates_rps=" + str([4 + 0.01 * n for n in range(90)])
    # Long enough not to be over before the signal comes, on however busy a machine.
    longer = "workload.arrivals.duration_s=2000"
    argv = [*BANA, "sim", STEADY, "--set", rates, "--set", longer, "--json", "part.json"]
    process = subprocess.Popen(
        argv, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "attains" in line:
            break
    os.kill(process.pid, signal.SIGINT)
    answer, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert answer.splitlines()[-1].startswith("Interrupted: only a part of the scene.")
    found = json.loads((tmp_path / "part.json").read_bytes())
    assert found["is_interrupted"]
    assert 0 < len(found["measured"]) < 180


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["sim", "none.toml"], "cannot read 'none.toml'"),
        (["sim", STEADY, "--set", "engine.kv_tokns=1"], "did you mean 'engine.kv_tokens'"),
        (["sim", STEADY, "--set", "engine.kv_tokens=99"], "raise it"),
        (["sim", STEADY, "--policy", "nobody"], "policy of the scene 'nobody'"),
        (["sim", STEADY, "--set", "policies.fcfs.order.name=fcsf"], "did you mean 'fcfs'"),
        (["sim", STEADY, "--json", "none/all.json"], "cannot write to 'none/all.json'"),
        (["sim", STEADY, "--decisions", "log.jsonl"], "2 policies"),
        (["replay", "none.jsonl"], "cannot read 'none.jsonl'"),
    ],
)
def test_what_cannot_be_done_is_one_line(tmp_path: Path, argv: list[str], part: str) -> None:
    done = run(*argv, cwd=tmp_path)
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert part in errors[0]
    assert list(tmp_path.iterdir()) == []
