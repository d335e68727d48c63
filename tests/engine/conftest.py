"""Single instances for engine tests: `sglang_bana.engine.serve`, proven gone at the end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import msgspec
import psutil
import pytest
import zmq

from bana.slo.restore import DEFAULT_RESTORE
from bana.slo.wire import LoadReport, decode_load
from sglang_bana import leftovers
from sglang_bana.config import (
    INSTANCE_ENV,
    EngineConfig,
    InstanceSpec,
    SchedulingConfig,
    write_private,
)

READY_DEADLINE_S = 240.0
END_DEADLINE_S = 60.0
SECRET = "the-secret-of-this-run"


class Instance:
    """One serving process with its spec, its log and a subscription to its load reports."""

    def __init__(self, spec: InstanceSpec, process: subprocess.Popen[bytes], port: int) -> None:
        self.spec = spec
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.log = Path(spec.run_dir) / "instance.log"
        self._context = zmq.Context()
        self._reports = self._context.socket(zmq.SUB)
        self._reports.connect(spec.load_endpoint)
        self._reports.subscribe(b"")

    def wait_ready(self) -> None:
        """Return once it serves."""
        end_s = time.monotonic() + READY_DEADLINE_S
        while time.monotonic() < end_s and self.process.poll() is None:
            try:
                self.request("/health")
                return
            except (HTTPError, URLError, OSError):
                time.sleep(0.3)
        pytest.fail(f"instance not ready (status {self.process.poll()})\n{self.log_tail()}")

    def request(self, path: str, body: object = None, secret: str = SECRET) -> Any:
        """The decoded JSON answer of one request; HTTPError for an error status."""
        text = self._send(path, body, secret)
        return json.loads(text) if text else None

    def flush_cache(self) -> None:
        """Empty the prefix cache; HTTPError where requests run or wait. Answered in words."""
        self._send("/flush_cache", {}, SECRET)

    def _send(self, path: str, body: object, secret: str) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {secret}"}
        with urlopen(Request(self.url + path, data, headers), timeout=120) as response:
            return response.read()

    def greedy_ids(self, prompt: list[int], new_tokens: int) -> list[int]:
        """The token ids that follow `prompt` greedily."""
        sampling = {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": prompt, "sampling_params": sampling}
        return list(self.request("/generate", body)["output_ids"])

    def wait_report(
        self,
        is_wanted: Callable[[LoadReport], bool],
        since_s: float = 0.0,
        deadline_s: float = 30.0,
    ) -> LoadReport:
        """The first report made after `since_s` that is wanted; fails with the last one seen."""
        end_s = time.monotonic() + deadline_s
        seen = None
        while time.monotonic() < end_s:
            if self._reports.poll(200):
                seen = decode_load(self._reports.recv())
                if seen.time_s >= since_s and is_wanted(seen):
                    return seen
        return pytest.fail(f"no such load report within {deadline_s} s; the last was {seen}")

    def scheduler_pids(self) -> list[int]:
        """The scheduler processes of this instance, one a rank."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [p.pid for p in found if "sglang::scheduler" in " ".join(p.cmdline())]

    def survivors(self) -> list[str]:
        """Living processes of the instance's process group."""
        found = []
        for process in psutil.process_iter():
            try:
                if os.getpgid(process.pid) == self.process.pid and process.status() != "zombie":
                    found.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
            except (psutil.NoSuchProcess, ProcessLookupError):
                continue
        return found

    def wait_end(self, deadline_s: float = END_DEADLINE_S) -> int:
        """The exit status once the whole process group has ended."""
        status = self.process.wait(deadline_s)
        end_s = time.monotonic() + deadline_s
        while self.survivors() and time.monotonic() < end_s:
            time.sleep(0.1)
        assert self.survivors() == []
        return status

    def stop(self) -> int:
        """SIGTERM, then the exit status; what does not end in time is killed and fails."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.wait_end()
        except subprocess.TimeoutExpired:
            return pytest.fail(f"the instance ignored SIGTERM\n{self.log_tail()}")
        finally:
            self.end()

    def end(self) -> None:
        """Kill whatever is left and close the subscription."""
        if self.process.poll() is None or self.survivors():
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._context.destroy(linger=0)

    def log_tail(self) -> str:
        return self.log.read_text()[-4000:]


StartInstance = Callable[..., AbstractContextManager[Instance]]


@pytest.fixture(scope="session")
def spawn_instance() -> StartInstance:
    """A function: model, arguments, engine config and environment in; a spawned instance out.

    It is not waited for, so that refusals and crashes can be watched as well.
    """

    @contextmanager
    def spawn(
        model: Path,
        *arguments: str,
        engine: EngineConfig | None = None,
        scheduling: SchedulingConfig | None = None,
        environment: dict[str, str] | None = None,
        store_endpoint: str = "",
        restore: str = DEFAULT_RESTORE,
        restore_options: Mapping[str, object] | None = None,
    ) -> Iterator[Instance]:
        # Socket paths are short, pytest's own folders are not.
        with tempfile.TemporaryDirectory(prefix="bana-", dir="/tmp") as run_dir:
            spec = msgspec.structs.replace(
                _describe(Path(run_dir), engine, scheduling),
                store_endpoint=store_endpoint,
                restore=restore,
                restore_options=restore_options or {},
            )
            instance = _spawn(spec, model, arguments, environment)
            try:
                yield instance
            finally:
                instance.end()
                leftovers.sweep(leftovers.temporary_folder(Path(run_dir), instance.spec.name))

    return spawn


@pytest.fixture(scope="session")
def start_instance(spawn_instance: StartInstance) -> StartInstance:
    """As `spawn_instance`, but ready; at the end it is stopped and proven gone."""

    @contextmanager
    def start(model: Path, *arguments: str, **options: Any) -> Iterator[Instance]:
        with spawn_instance(model, *arguments, **options) as instance:
            instance.wait_ready()
            yield instance
            if instance.process.returncode is None:
                assert instance.stop() == 0, instance.log_tail()

    return start


def _describe(
    run_dir: Path, engine: EngineConfig | None, scheduling: SchedulingConfig | None
) -> InstanceSpec:
    return InstanceSpec(
        name="i0",
        engine=engine or EngineConfig(),
        secret=SECRET,
        load_endpoint=f"ipc://{run_dir}/i0.load",
        parent_pid=os.getpid(),
        run_dir=str(run_dir),
        scheduling=scheduling or SchedulingConfig(),
    )


def _spawn(
    spec: InstanceSpec,
    model: Path,
    arguments: tuple[str, ...],
    environment: dict[str, str] | None,
) -> Instance:
    run_dir = Path(spec.run_dir)
    write_private(run_dir / "i0.json", spec)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [sys.executable, "-m", "sglang_bana.engine.serve", "--model-path", str(model)]
    argv += ["--port", str(port), "--page-size", "16", "--max-total-tokens", "4096"]
    argv += ["--dtype", "float32", "--sleep-on-idle", *arguments]
    settings = {
        INSTANCE_ENV: str(run_dir / "i0.json"),
        "SGLANG_CPU_OMP_THREADS_BIND": "0",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    with (run_dir / "instance.log").open("wb") as log:
        process = subprocess.Popen(
            argv,
            env={**os.environ, **settings, **(environment or {})},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Instance(spec, process, port)
