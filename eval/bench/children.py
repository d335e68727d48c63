"""Servers that a benchmark starts: each pinned, logged to a file, and gone at the end.

start ──ready──▶ in use ──▶ SIGTERM ──deadline──▶ SIGKILL of all that is left
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from bana.eval.bench.errors import BenchError

PR_SET_PDEATHSIG = 1
STOP_TIMEOUT_S = 60.0
KILL_TIMEOUT_S = 10.0
POLL_S = 0.05
TAIL_LINES = 12

_LIBC = ctypes.CDLL(None, use_errno=True)


class ChildPlan(msgspec.Struct, frozen=True):
    """What to start: `cores` are all it may run on, `log` gets its output."""

    name: str
    command: Sequence[str]
    cores: frozenset[int]
    log: Path
    env: Mapping[str, str] = {}


class Child:
    """A running server and everything that it started."""

    def __init__(self, plan: ChildPlan, popen: subprocess.Popen[bytes]) -> None:
        self.plan = plan
        self.pid = popen.pid
        self._popen = popen

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Return once `is_ready`; BenchError with the log's last lines when it never is."""
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            if self._popen.poll() is not None:
                raise BenchError(
                    f"{self.plan.name} ended with status {self._popen.returncode} before it was "
                    f"ready; its last words:\n{self._read_tail()}"
                )
            if time.monotonic() > deadline:
                raise BenchError(
                    f"{self.plan.name} was not ready within {timeout_s:g} s; its last words:\n"
                    f"{self._read_tail()}"
                )
            time.sleep(POLL_S)

    def require_alive(self) -> None:
        """BenchError when it has ended: what was measured since then is void."""
        if self._popen.poll() is not None:
            raise BenchError(
                f"{self.plan.name} ended with status {self._popen.returncode} while it was "
                f"measured; its last words:\n{self._read_tail()}"
            )

    def list_processes(self) -> list[psutil.Process]:
        """Itself and its descendants, as far as they live."""
        try:
            root = psutil.Process(self.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def follow(self, say: Callable[[str], None], timeout_s: float) -> int:
        """Pass on what it writes until it ends, and return its status; BenchError when too late."""
        deadline_s = time.monotonic() + timeout_s
        with self.plan.log.open(errors="replace") as log:
            while (status := self._popen.poll()) is None:
                for line in log:
                    say(line.rstrip())
                if time.monotonic() > deadline_s:
                    raise BenchError(f"{self.plan.name} did not end within {timeout_s:g} s")
                time.sleep(POLL_S)
            for line in log:
                say(line.rstrip())
        return status

    def stop(self) -> None:
        """Ask it to end, then end whatever it left."""
        family = self.list_processes()
        try:
            if self._popen.poll() is None:
                self._popen.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._popen.wait(STOP_TIMEOUT_S)
        finally:
            # Also on a second Ctrl-C, which cuts the wait above short.
            self._kill(family)

    def _kill(self, family: list[psutil.Process]) -> None:
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._popen.wait(KILL_TIMEOUT_S)
        psutil.wait_procs(family, timeout=KILL_TIMEOUT_S)

    def _read_tail(self) -> str:
        lines = self.plan.log.read_text(errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-TAIL_LINES:]) or "  (none)"


@contextlib.contextmanager
def running(plan: ChildPlan) -> Iterator[Child]:
    """The server for the length of the block; it dies with this process whatever happens."""
    parent = os.getpid()

    def prepare() -> None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.sched_setaffinity(0, plan.cores)

    with plan.log.open("wb") as log:
        # Its own session keeps a terminal's Ctrl-C away from it: it is stopped in order below.
        popen = subprocess.Popen(
            list(plan.command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **plan.env},
            start_new_session=True,
            preexec_fn=prepare,
        )
    child = Child(plan, popen)
    try:
        yield child
    finally:
        child.stop()


def pin_process(pid: int, cores: frozenset[int]) -> None:
    """Confine a process of ours, all of its threads included; nothing where it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cores)


@contextlib.contextmanager
def confined(cores: frozenset[int]) -> Iterator[None]:
    """This process on `cores` for the length of the block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def bana_command(*words: str) -> list[str]:
    """`bana …` in this interpreter's environment."""
    return [sys.executable, "-m", "bana.cli.main", *words]
