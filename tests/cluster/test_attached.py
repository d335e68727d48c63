"""`bana launch --upstream` with the real front door before a stand-in for a running server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from sglang_bana.cluster.attached import AttachedServers
from sglang_bana.cluster.progress import Row
from sglang_bana.status import FrontDoorStatus, InstanceState, InstanceStatus

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


@contextmanager
def launched(environ: dict[str, str], output: Path, *flags: str) -> Iterator[None]:
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*BANA, "launch", "--port", "0", *flags],
            env=environ,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0, output.read_text()


def wait_said(output: Path, word: str) -> str:
    end_s = time.monotonic() + DEADLINE_S
    while word not in output.read_text():
        assert time.monotonic() < end_s, output.read_text()
        time.sleep(0.1)
    return output.read_text()


def test_a_server_that_is_not_there_is_named_with_the_reason(environ, tmp_path) -> None:
    output = tmp_path / "output"
    with socket.socket() as nobody:
        # Bound and not listening: connections are refused.
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with launched(environ, output, "--upstream", url):
            said = wait_said(output, "upstream-0: starting, Connection refused")
            assert "ready: http" not in said


def test_a_wrong_key_keeps_the_launch_from_being_ready(environ, tmp_path) -> None:
    output, keys = tmp_path / "output", tmp_path / "keys"
    keys.write_text("wrong\n")
    settings = json.dumps({"secret": "right"})
    argv = [sys.executable, "-m", "bana.eval.stub", "--json-ready", "--settings", settings]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        try:
            flags = ("--upstream", url, "--upstream-key-file", str(keys))
            with launched(environ, output, *flags):
                said = wait_said(output, "upstream-0: starting, it wants another key")
                assert "--upstream-key-file" in said
                assert "ready: http" not in said
                told = subprocess.run(
                    [*BANA, "status"],
                    env=environ,
                    capture_output=True,
                    text=True,
                    timeout=DEADLINE_S,
                )
                assert told.returncode == 1
                assert f"warning: upstream-0 ({url}): it wants another key" in told.stdout
                assert state_of(tmp_path)["phase"] == "starting"
        finally:
            server.terminate()


def seen(name: str, state: InstanceState, trouble: str | None = None) -> InstanceStatus:
    return InstanceStatus(name, f"http://{name}", state, None, 0, 0, 0, 0, 0, 0, trouble=trouble)


def status_of(*instances: InstanceStatus) -> FrontDoorStatus:
    return FrontDoorStatus("0", 1, 0.0, True, False, 0, 1, "least_load", instances)


def test_each_server_that_takes_no_work_is_a_row_with_its_own_clock() -> None:
    servers = AttachedServers("/door.log")
    assert servers.rows(None, 0.0) == ()
    up = seen("up", InstanceState.UP)
    starting = seen("s", InstanceState.STARTING, "no answer within 5 s")
    (row,) = servers.rows(status_of(up, starting), 10.0)
    assert row == Row("s", "starting, no answer within 5 s", 0.0, "http://s", "/door.log")
    paused = seen("up", InstanceState.UP, "it answers /ready with 503")
    rows = servers.rows(status_of(paused, starting), 12.0)
    assert [(r.name, r.stage, r.since_s) for r in rows] == [
        ("up", "up, it answers /ready with 503", 0.0),
        ("s", "starting, no answer within 5 s", 2.0),
    ]
    assert servers.describe() == (
        "up: up, it answers /ready with 503; s: starting, no answer within 5 s"
    )
    # Another reason is another wait; what came and went begins anew.
    refused = seen("s", InstanceState.STARTING, "Connection refused")
    assert [r.since_s for r in servers.rows(status_of(up, refused), 14.0)] == [0.0]
    assert servers.rows(status_of(up, seen("s", InstanceState.UP)), 15.0) == ()
    assert [r.since_s for r in servers.rows(status_of(up, refused), 16.0)] == [0.0]
