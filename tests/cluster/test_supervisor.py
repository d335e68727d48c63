"""Whole launches with stand-ins for SGLang and the front door: restarts, stops, what is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

STUB = Path(__file__).with_name("stub_processes.py")
DEADLINE_S = 60.0


def wait_until(is_met: Callable[[], Any], what: Callable[[], object] = lambda: "") -> Any:
    end_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < end_s:
        if found := is_met():
            return found
        time.sleep(0.05)
    pytest.fail(f"not within {DEADLINE_S} s: {what()}")


class Launched:
    """A launcher with stub children in `root`/run."""

    def __init__(self, root: Path, settings: tuple[str, ...], behaviour: dict[str, Any]) -> None:
        self.root = root
        self.run = root / "run"
        entries = ["launch.model=stub", "launch.port=0", f"launch.run_dir={self.run}"]
        entries += ["supervisor.backoff_initial_s=0.05", *settings]
        self.entries = tuple(entries)
        self.output = root / "output"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(STUB), "launcher", *entries],
                env={**os.environ, "STUB_BEHAVIOUR": json.dumps(behaviour)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.seen: set[psutil.Process] = set()

    def state(self) -> dict[str, Any]:
        try:
            return json.loads((self.run / "state.json").read_bytes())
        except FileNotFoundError:
            return {"phase": "", "processes": []}

    def kept(self, name: str) -> dict[str, Any]:
        return next(p for p in self.state()["processes"] if p["name"] == name)

    def said(self) -> str:
        # Reading a pipe would wait for whoever writes to it.
        return self.output.read_text() if self.output.is_file() else ""

    def events(self) -> list[str]:
        return (self.root / "events").read_text().splitlines()

    def lives(self, name: str) -> int:
        return len((self.root / f"{name}.lives").read_text().splitlines())

    def wait_phase(self, phase: str) -> None:
        wait_until(lambda: self.state()["phase"] == phase, self.said)
        self.seen |= self.tree()

    def tree(self) -> set[psutil.Process]:
        return set(psutil.Process(self.process.pid).children(recursive=True))

    def survivors(self) -> set[psutil.Process]:
        alive = {p for p in self.seen if p.is_running()}
        return {p for p in alive if p.status() != psutil.STATUS_ZOMBIE}

    def wait_gone(self) -> int:
        status = self.process.wait(DEADLINE_S)
        wait_until(lambda: not self.survivors(), self.survivors)
        return status


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short name, since sockets are made in it."""
    return tmp_path_factory.mktemp("s")


@pytest.fixture
def launched(tmp_path: Path) -> Callable[..., Any]:
    @contextmanager
    def start(*settings: str, **behaviour: Any) -> Iterator[Launched]:
        named = {name.replace("_", "-"): wanted for name, wanted in behaviour.items()}
        running = Launched(tmp_path, settings, named)
        try:
            yield running
        finally:
            if running.process.poll() is None:
                running.seen |= running.tree()
                running.process.kill()
            running.wait_gone()

    return start


def test_a_cluster_serves_on_without_its_store(launched) -> None:
    store = ("store.enabled=true", "store.arena_bytes=2097152", "store.slot_bytes=4096")
    with launched(*store, "supervisor.max_restarts=1") as cluster:
        cluster.wait_phase("ready")
        spec = json.loads((cluster.run / "store.json").read_bytes())
        assert json.loads((cluster.run / "instance-0.json").read_bytes())["store_endpoint"]
        assert Path(spec["arena_path"]).exists()
        first = cluster.kept("store")["pid"]
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: cluster.kept("store")["pid"] not in (None, first), cluster.said)
        cluster.wait_phase("ready")
        os.kill(cluster.kept("store")["pid"], signal.SIGKILL)
        wait_until(lambda: cluster.kept("store")["is_given_up"], cluster.said)
        cluster.wait_phase("degraded")
        assert cluster.kept("instance-0")["restarts"] == 0
        cluster.process.terminate()
        assert cluster.wait_gone() == 0
        assert not Path(spec["arena_path"]).exists()
        assert not list(cluster.run.glob("store*"))


def test_term_drains_the_front_door_before_the_instances(launched) -> None:
    with launched("launch.instances=2") as cluster:
        cluster.wait_phase("ready")
        cluster.process.terminate()
        assert cluster.wait_gone() == 0
        ends = cluster.events()[2:]
        assert ends[:2] == ["front-door draining", "front-door drained"]
        assert sorted(ends[2:]) == ["instance-0 terminated", "instance-1 terminated"]
        assert cluster.state()["phase"] == "stopped"
        assert {path.name for path in cluster.run.iterdir()} == {"state.json", "logs"}


def is_refused(url: str) -> bool:
    host, _, port = url.removeprefix("http://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=DEADLINE_S).close()
    except ConnectionRefusedError:
        return True
    return False


def test_clients_are_refused_once_the_front_door_has_ended(launched) -> None:
    with launched("supervisor.stop_timeout_s=120", instance_0={"deaf": True}) as cluster:
        cluster.wait_phase("ready")
        url = cluster.state()["url"]
        cluster.process.terminate()
        wait_until(lambda: is_refused(url), cluster.said)
        assert "front-door drained" in cluster.events()
        assert cluster.process.poll() is None
        assert cluster.kept("instance-0")["pid"] is not None
        time.sleep(1.0)  # Two signals within a quarter of a second are one request.
        cluster.process.terminate()
        assert cluster.wait_gone() == 0


@pytest.mark.parametrize("by_file", [False, True])
def test_the_example_for_users_carries_the_key_that_they_need(
    launched, tmp_path: Path, by_file: bool
) -> None:
    keys = tmp_path / "keys.toml"
    keys.touch()
    lock = f"auth.keys_file={keys}" if by_file else "auth.api_key=hunter2"
    with launched(lock) as cluster:
        cluster.wait_phase("ready")
        wait_until(lambda: "    curl " in cluster.said(), cluster.said)
        assert '-H "Authorization: Bearer $BANA_API_KEY"' in cluster.said()
        assert "hunter2" not in cluster.said()


def test_an_open_server_is_shown_without_a_key(launched) -> None:
    with launched() as cluster:
        cluster.wait_phase("ready")
        wait_until(lambda: "    curl " in cluster.said(), cluster.said)
        assert "Authorization" not in cluster.said()


def test_second_signal_ends_a_long_drain(launched, monkeypatch) -> None:
    monkeypatch.setenv("STUB_DRAIN_S", "600")
    with launched() as cluster:
        cluster.wait_phase("ready")
        cluster.process.send_signal(signal.SIGINT)
        wait_until(lambda: "front-door draining" in cluster.events())
        time.sleep(0.3)
        cluster.process.send_signal(signal.SIGINT)
        assert cluster.wait_gone() == 0
        assert "front-door drained" not in cluster.events()


def test_killed_instance_is_restarted_with_all_it_started(launched) -> None:
    with launched(instance_0={"grandchild": True}) as cluster:
        cluster.wait_phase("ready")
        first = cluster.kept("instance-0")["pid"]
        assert psutil.Process(first).children()
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: cluster.kept("instance-0")["restarts"] == 1, cluster.said)
        cluster.wait_phase("ready")
        again = cluster.kept("instance-0")["pid"]
        assert again != first
        alive = {p.pid for p in cluster.survivors()}
        children = {p.pid for p in psutil.Process(again).children()}
        door = cluster.kept("front-door")["pid"]
        janitors = {p.pid for p in cluster.survivors() if "janitor" in " ".join(p.cmdline())}
        assert alive == {again, door} | children | janitors
        assert "killed by signal 9" in cluster.said()


def test_killed_front_door_is_restarted_on_the_same_socket(launched) -> None:
    with launched() as cluster:
        cluster.wait_phase("ready")
        url, instance = cluster.state()["url"], cluster.kept("instance-0")["pid"]
        os.kill(cluster.kept("front-door")["pid"], signal.SIGKILL)
        wait_until(lambda: cluster.kept("front-door")["restarts"] == 1, cluster.said)
        cluster.wait_phase("ready")
        assert cluster.state()["url"] == url
        assert cluster.kept("instance-0")["pid"] == instance


def test_instance_that_never_serves_is_given_up_and_ends_the_launch(launched) -> None:
    with launched(instance_0={"fail_first": 99}) as cluster:
        assert cluster.wait_gone() == 1
        assert cluster.lives("instance-0") == 2
        assert cluster.kept("instance-0")["is_given_up"]
        assert cluster.state()["phase"] == "failed"
        last = cluster.said().splitlines()[-1]
        assert last.startswith("error: instance-0 ended with status 1 and is given up")
        assert "RuntimeError: the model does not fit" in last
        assert str(cluster.run / "logs" / "instance-0.log") in last


def test_refused_orders_are_not_tried_again(launched) -> None:
    with launched(instance_0={"fail_first": 99, "status": 2}) as cluster:
        assert cluster.wait_gone() == 2, cluster.said()
        assert cluster.lives("instance-0") == 1


def test_one_failed_start_is_forgiven(launched) -> None:
    with launched(instance_0={"fail_first": 1}) as cluster:
        cluster.wait_phase("ready")
        assert cluster.lives("instance-0") == 2


def test_rest_serves_on_when_one_instance_is_given_up(launched) -> None:
    with launched("launch.instances=2", instance_1={"fail_first": 99}) as cluster:
        cluster.wait_phase("degraded")
        assert cluster.kept("instance-1")["is_given_up"]
        assert not cluster.kept("instance-0")["is_given_up"]
        assert "ready: http://127.0.0.1:" in cluster.said()
        cluster.process.terminate()
        assert cluster.wait_gone() == 0


def test_silent_instance_is_killed_and_restarted(launched) -> None:
    rules = ("supervisor.suspect_after_s=1", "supervisor.kill_after_s=3")
    with launched(*rules) as cluster:
        cluster.wait_phase("ready")
        os.kill(cluster.kept("instance-0")["pid"], signal.SIGSTOP)
        wait_until(lambda: cluster.kept("instance-0")["restarts"] == 1, cluster.said)
        cluster.wait_phase("ready")
        assert "no sign of life" in cluster.said()


def test_deaf_instance_is_killed_after_the_stop_timeout(launched) -> None:
    with launched("supervisor.stop_timeout_s=0.5", instance_0={"deaf": True}) as cluster:
        cluster.wait_phase("ready")
        cluster.process.terminate()
        assert cluster.wait_gone() == 0


def test_nothing_survives_a_killed_launcher(launched) -> None:
    name = f"bana_test_{os.getpid()}"
    stubborn = {"deaf": True, "grandchild": True, "segment": name}
    with launched("launch.instances=2", instance_0=stubborn) as cluster:
        cluster.wait_phase("ready")
        assert (Path("/dev/shm") / name).exists()
        os.kill(cluster.kept("instance-1")["pid"], signal.SIGSTOP)
        cluster.process.kill()
        cluster.wait_gone()
        wait_until(lambda: not (Path("/dev/shm") / name).exists())
        kept = {"state.json", "logs"}
        wait_until(lambda: {path.name for path in cluster.run.iterdir()} == kept)


def test_stopping_unlinks_shared_memory_that_an_instance_left(launched) -> None:
    name = f"bana_test_stop_{os.getpid()}"
    with launched(instance_0={"segment": name}) as cluster:
        cluster.wait_phase("ready")
        assert (Path("/dev/shm") / name).exists()
        cluster.process.terminate()
        assert cluster.wait_gone() == 0
        assert not (Path("/dev/shm") / name).exists()


def test_a_cluster_outlives_whoever_reads_its_output(launched, tmp_path: Path) -> None:
    pipe = tmp_path / "output"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with launched() as cluster:
        os.close(reader)
        cluster.wait_phase("ready")
        cluster.process.terminate()
        assert cluster.wait_gone() == 0
        assert "front-door drained" in cluster.events()
        assert cluster.state()["phase"] == "stopped"


def test_secrets_are_in_private_files_only(launched) -> None:
    with launched() as cluster:
        cluster.wait_phase("ready")
        spec = json.loads((cluster.run / "instance-0.json").read_bytes())
        for path in (cluster.run, *cluster.run.glob("*.json"), cluster.run / "control.key"):
            assert path.stat().st_mode & 0o077 == 0, path
        for process in cluster.tree():
            shown = [*process.cmdline(), *process.environ().values()]
            assert not any(spec["secret"] in text for text in shown)
        cluster.process.terminate()
        cluster.wait_gone()


def test_second_launch_in_a_live_run_directory_is_refused(launched) -> None:
    with launched() as cluster:
        cluster.wait_phase("ready")
        again = subprocess.run(
            [sys.executable, str(STUB), "launcher", *cluster.entries],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert again.returncode == 2
        assert "belongs to a running cluster" in again.stderr
        assert (cluster.run / "instance-0.json").exists()


def bana(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bana.cli.main", *argv],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def test_status_tells_instances_and_restarts(launched, monkeypatch) -> None:
    with launched("launch.instances=2", instance_1={"fail_first": 1}) as cluster:
        cluster.wait_phase("ready")
        told = bana("status", "--json", "--run-dir", str(cluster.run))
        assert told.returncode == 0, told.stderr
        status = json.loads(told.stdout)
        assert status["run"]["url"] == cluster.state()["url"]
        assert [p["restarts"] for p in status["run"]["processes"]] == [0, 1, 0]
        assert [i["state"] for i in status["front_door"]["instances"]] == ["up", "up"]
        # The control key must not travel through a proxy, which here would refuse it.
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        plain = bana("status", "--run-dir", str(cluster.run)).stdout
        assert "front door: up" in plain
        assert "instance-1  up" in plain
        assert "RuntimeError: the model does not fit" in plain


def test_status_of_a_cluster_without_front_door_is_no_success(launched) -> None:
    with launched() as cluster:
        cluster.wait_phase("ready")
        os.kill(cluster.kept("front-door")["pid"], signal.SIGSTOP)
        told = bana("status", "--run-dir", str(cluster.run))
        assert told.returncode == 1
        assert "front door: no answer" in told.stdout


def test_stop_drains_and_waits_until_all_is_gone(launched) -> None:
    with launched() as cluster:
        cluster.wait_phase("ready")
        assert bana("stop", "--run-dir", str(cluster.run)).returncode == 0
        assert cluster.process.wait(1) == 0
        assert cluster.survivors() == set()
        assert "front-door drained" in cluster.events()
        again = bana("stop", "--run-dir", str(cluster.run))
        assert again.returncode == 2
        assert "has ended (stopped)" in again.stderr


def test_stop_now_does_not_drain(launched, monkeypatch) -> None:
    monkeypatch.setenv("STUB_DRAIN_S", "600")
    with launched() as cluster:
        cluster.wait_phase("ready")
        slow = bana("stop", "--timeout", "1", "--run-dir", str(cluster.run))
        assert slow.returncode == 1
        assert "bana stop --now" in slow.stderr
        assert bana("stop", "--now", "--run-dir", str(cluster.run)).returncode == 0
        assert "front-door drained" not in cluster.events()
