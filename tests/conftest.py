"""Real clusters for tests: `bana launch` in a process of its own, stopped and proven gone. Hosts of
their own to start them on.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import msgspec
import pytest

from sglang_bana.cluster.control import ask_front_door, find_live_run

START_DEADLINE_S = 240.0
GONE_DEADLINE_S = 60.0
MARK = "TEST_CLUSTER_MARK"
FIXTURE_SEED = 20
SET_UP = "ip link set lo up && mount -t tmpfs tmpfs /dev/shm && echo up && exec sleep 600"


class RunningCluster:
    """One `bana launch`: its URL, run directory, and every process that descends from it."""

    def __init__(self, launcher: subprocess.Popen[bytes], run_dir: Path, mark: str) -> None:
        self.launcher = launcher
        self.run_dir = run_dir
        self._mark = f"{MARK}={mark}".encode()
        self.url = ""

    def state(self) -> dict[str, Any]:
        """The run's state file; empty before the launcher wrote it."""
        try:
            return dict(json.loads((self.run_dir / "state.json").read_bytes()))
        except FileNotFoundError:
            return {}

    def pid_of(self, name: str) -> int:
        """The current pid of a supervised process such as `instance-0` or `front-door`."""
        return next(p["pid"] for p in self.state()["processes"] if p["name"] == name)

    def status(self) -> dict[str, Any]:
        """What `bana status --json` says."""
        argv = [sys.executable, "-m", "bana.cli.main", "status", "--json"]
        done = subprocess.run(
            [*argv, "--run-dir", str(self.run_dir)], capture_output=True, text=True, timeout=60
        )
        # 1 says that something is down, which a test may well have brought about.
        assert done.returncode in (0, 1), done.stderr
        return dict(json.loads(done.stdout))

    def front_door(self) -> dict[str, Any]:
        """What the front door says of itself and its instances; empty while it does not answer.

        Asked here: `status` starts a process, whose CPU time a loop takes from what it waits for.
        """
        said = ask_front_door(find_live_run(str(self.run_dir), {}))
        return {} if said is None else dict(msgspec.to_builtins(said))

    def survivors(self) -> dict[int, str]:
        """Every living process that was started by this cluster, the launcher included."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and self._is_ours(entry):
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")[:200]
        return found

    def shared_memory(self) -> set[Path]:
        """The files in shared memory that its processes have mapped."""
        found = set()
        for pid in self.survivors():
            try:
                lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            except OSError:
                continue
            found |= {Path(x.split()[-1]) for x in lines if x.split()[-1].startswith("/dev/shm/")}
        return found

    def wait_gone(self, deadline_s: float = GONE_DEADLINE_S) -> dict[int, str]:
        """The survivors after waiting for none; empty means that everything ended."""
        end_s = time.monotonic() + deadline_s
        left = self.survivors()
        while left and time.monotonic() < end_s:
            time.sleep(0.2)
            left = self.survivors()
        return left

    def post(self, path: str, body: dict[str, Any], timeout_s: float = 120) -> dict[str, Any]:
        """The decoded answer of one JSON request."""
        headers = {"Content-Type": "application/json"}
        request = Request(self.url + path, data=json.dumps(body).encode(), headers=headers)
        with urlopen(request, timeout=timeout_s) as response:
            return dict(json.loads(response.read()))

    def greedy_ids(self, prompt: list[int], new_tokens: int) -> list[int]:
        """The token ids that follow `prompt` greedily."""
        sampling = {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": prompt, "sampling_params": sampling}
        return list(self.post("/generate", body)["output_ids"])

    def log_tail(self) -> str:
        """The last lines of every log, for a failure message."""
        logs = sorted(self.run_dir.rglob("*.log"))
        return "\n".join(f"== {log.name}\n{log.read_text()[-2000:]}" for log in logs)

    def _is_ours(self, entry: Path) -> bool:
        try:
            is_zombie = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            return not is_zombie and self._mark in (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            return False


StartCluster = Callable[..., AbstractContextManager[RunningCluster]]


@pytest.fixture(scope="session")
def start_cluster(tmp_path_factory: pytest.TempPathFactory) -> StartCluster:
    """A function: launch flags in, a context with a ready cluster out.

    `host` is the command by which processes of another host are started.
    """

    @contextmanager
    def start(
        *flags: str, sglang_args: tuple[str, ...] = (), host: tuple[str, ...] = ()
    ) -> Iterator[RunningCluster]:
        run_dir = tmp_path_factory.mktemp("c") / "run"
        mark = uuid.uuid4().hex
        argv = [*host, sys.executable, "-m", "bana.cli.main", "launch", "--port", "0"]
        argv += ["--run-dir", str(run_dir), *flags, "--", *sglang_args]
        with (run_dir.parent / "launch.log").open("wb") as log:
            launcher = subprocess.Popen(
                argv, env={**os.environ, MARK: mark}, stdout=log, stderr=subprocess.STDOUT
            )
        cluster = RunningCluster(launcher, run_dir, mark)
        try:
            _wait_ready(cluster)
            yield cluster
        finally:
            _stop(cluster)

    return start


def _wait_ready(cluster: RunningCluster) -> None:
    end_s = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < end_s and cluster.launcher.poll() is None:
        state = cluster.state()
        if state.get("phase") == "ready":
            cluster.url = state["url"]
            return
        time.sleep(0.2)
    said = (cluster.run_dir.parent / "launch.log").read_text()[-3000:]
    pytest.fail(f"cluster not ready\n{said}\n{cluster.log_tail()}")


def _stop(cluster: RunningCluster) -> None:
    mapped = cluster.shared_memory()
    if cluster.launcher.poll() is None:
        cluster.launcher.send_signal(signal.SIGTERM)
    try:
        cluster.launcher.wait(GONE_DEADLINE_S)
    except subprocess.TimeoutExpired:
        cluster.launcher.kill()
        cluster.launcher.wait()
        pytest.fail("the launcher did not stop on SIGTERM")
    finally:
        left = cluster.wait_gone()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert left == {}, f"left running: {left}"
    sockets = {path for path in cluster.run_dir.rglob("*") if path.is_socket()}
    assert sockets | {path for path in mapped if path.exists()} == set()


class Host:
    """A network and mounts of its own, /dev/shm among them, kept by a process that sleeps there.

    Neither an address nor an arena leads from one to another.
    """

    def __init__(self) -> None:
        argv = ["unshare", "--net", "--mount", "sh", "-c", SET_UP]
        self.keeper = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def await_up(self) -> str:
        """Empty once it is there, else why it is not."""
        assert self.keeper.stdout is not None
        assert self.keeper.stderr is not None
        if self.keeper.stdout.readline() == b"up\n":
            return ""
        return self.keeper.stderr.read().decode(errors="replace").strip()

    @property
    def entry(self) -> tuple[str, ...]:
        """What to write before a command that is to run there."""
        return ("nsenter", f"--target={self.keeper.pid}", "--net", "--mount", "--")

    def close(self) -> None:
        self.keeper.kill()
        self.keeper.communicate()


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    """Two of them; the test is skipped where there cannot be any."""
    if not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        pytest.skip("unshare, nsenter or ip is not installed: no networks of their own")
    made = (Host(), Host())
    try:
        trouble = [why for why in [host.await_up() for host in made] if why]
        if trouble:
            pytest.skip(f"networks and mounts of their own cannot be made here: {trouble[0]}")
        yield made
    finally:
        for host in made:
            host.close()


@pytest.fixture(scope="session")
def fixture_models() -> Path:
    """Where fixture models are kept from run to run, keyed by what they are made from."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bana" / "fixtures"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def llama_fixture(fixture_models: Path) -> Path:
    """A small Llama-shaped model in fp32."""
    return _ensure_fixture(fixture_models, "llama")


@pytest.fixture(scope="session")
def other_llama_fixture(fixture_models: Path) -> Path:
    """The same model with other weights."""
    return _ensure_fixture(fixture_models, "llama", FIXTURE_SEED + 1)


@pytest.fixture(scope="session")
def qwen3_fixture(fixture_models: Path) -> Path:
    """A small Qwen3-shaped model in fp32."""
    return _ensure_fixture(fixture_models, "qwen3")


def _ensure_fixture(folder: Path, kind: str, seed: int = FIXTURE_SEED) -> Path:
    from sglang_bana.engine import fixtures

    source = Path(fixtures.__file__).read_bytes()
    key = hashlib.sha256(source).hexdigest()[:12]
    model = folder / f"{kind}-{seed}-{key}"
    if model.exists():
        return model
    return fixtures.make_fixture(fixtures.FixtureKind(kind), seed, model)
