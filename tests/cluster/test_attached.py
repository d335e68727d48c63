"""`bana launch --upstream` with the real front door before a stand-in for a running server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

DEADLINE_S = 60.0
BANA = [sys.executable, "-m", "bana.cli.main"]


@pytest.fixture
def server_url() -> Iterator[str]:
    argv = [sys.executable, "-m", "bana.eval.stub", "--json-ready"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield json.loads(server.stdout.readline())["url"]
        finally:
            server.terminate()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}


@pytest.fixture
def launcher(server_url: str, environ, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    argv = [*BANA, "launch", "--upstream", server_url, "--port", "0", "--api-key", "hunter2"]
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(argv, env=environ, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0, (tmp_path / "output").read_text()


def state_of(folder: Path) -> dict:
    files = list((folder / "bana").glob("*/state.json"))
    return json.loads(files[0].read_bytes()) if files else {}


def test_attached_server_is_served_through_the_front_door(launcher, environ, tmp_path) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while state_of(tmp_path).get("phase") != "ready":
        assert time.monotonic() < end_s, (tmp_path / "output").read_text()
        assert launcher.poll() is None
        time.sleep(0.1)
    url = state_of(tmp_path)["url"]
    request = Request(
        f"{url}/v1/completions",
        data=json.dumps({"model": "default", "prompt": "x", "max_tokens": 2}).encode(),
        headers={"Content-Type": "application/json", "Authorization": "Bearer hunter2"},
    )
    with urlopen(request, timeout=30) as answer:
        assert json.loads(answer.read())["choices"]
    told = subprocess.run(
        [*BANA, "status", "--json"], env=environ, capture_output=True, text=True, timeout=DEADLINE_S
    )
    status = json.loads(told.stdout)
    assert told.returncode == 0
    assert [p["name"] for p in status["run"]["processes"]] == ["front-door"]
    assert [i["state"] for i in status["front_door"]["instances"]] == ["up"]
    assert "hunter2" not in told.stdout + (tmp_path / "output").read_text()


def test_doctor_tries_every_hop_of_a_running_cluster(launcher, environ, tmp_path) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while state_of(tmp_path).get("phase") != "ready":
        assert time.monotonic() < end_s, (tmp_path / "output").read_text()
        time.sleep(0.1)
    told = subprocess.run(
        [*BANA, "doctor", "--json"], env=environ, capture_output=True, text=True, timeout=200
    )
    findings = {row["name"]: row for row in json.loads(told.stdout)}
    assert findings["running front-door"]["severity"] == "ok"
    assert findings["running upstream-0"]["severity"] == "ok"
