"""LMCache's LocalDiskBackend as a side: started in its own environment, asked round by round."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import msgspec

import sglang_bana
from bana.slo.errors import ConfigError
from sglang_bana.engine.peers.lmcache_process import Ready, Round, Setup, Took
from sglang_bana.engine.peers.reading import DEADLINE_S, ReadPlan, WrongPage

MODULE = "sglang_bana.engine.peers.lmcache_process"
VERSION = "0.5.6"
START_DEADLINE_S = 300.0
STOP_DEADLINE_S = 30.0
TAIL_LINES = 12
# It tells its makers what it runs on unless it is told not to.
QUIET = {"LMCACHE_TRACK_USAGE": "false", "DO_NOT_TRACK": "1", "LMCACHE_LOG_LEVEL": "WARNING"}

Answer = TypeVar("Answer")


class LmcacheDisk:
    """See Side; pages are checked once, before the first round."""

    def __init__(self, pipe: Connection, process: subprocess.Popen[bytes], log: Path) -> None:
        self._pipe = pipe
        self._process = process
        self._log = log

    def start(self, setup: Setup) -> None:
        """Return when all pages are written and checked; ConfigError for another version."""
        ready = self._ask(setup, Ready, START_DEADLINE_S)
        if ready.version != VERSION:
            raise ConfigError(
                f"the interpreter has lmcache {ready.version}, allowed: {VERSION}, with which the "
                "figure is defined; make venv-lmcache builds it"
            )

    def time_round(self, threads: int) -> float:
        return self._ask(Round(threads), Took, DEADLINE_S).seconds

    def check(self) -> None:
        """Nothing more: `start` has seen to it."""

    def _ask(self, message: msgspec.Struct, kind: type[Answer], deadline_s: float) -> Answer:
        try:
            self._pipe.send_bytes(msgspec.json.encode(message))
            if not self._pipe.poll(deadline_s):
                raise WrongPage(f"LMCache did not answer within {deadline_s:g} s{self._tell()}")
            return msgspec.json.decode(self._pipe.recv_bytes(), type=kind)
        except (EOFError, ConnectionError):
            _end(self._process)  # its last words come after the pipe's end
            raise WrongPage(f"LMCache's process has ended{self._tell()}") from None

    def _tell(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "; its last words:\n" + "\n".join(lines[-TAIL_LINES:])


@contextmanager
def open_lmcache_disk(plan: ReadPlan, folder: Path, python: Path) -> Iterator[LmcacheDisk]:
    """A LocalDiskBackend of that interpreter's LMCache in `folder`, with all pages of the plan.

    The other environment sees this package and nothing else of this one.
    """
    folder.mkdir()
    (folder / "sglang_bana").symlink_to(Path(sglang_bana.__file__).parent)
    inherited = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs, (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(python), "-m", MODULE, str(theirs.fileno())],
            cwd=folder,
            env={**inherited, **QUIET, "PROMETHEUS_MULTIPROC_DIR": str(folder / "metrics")},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        try:
            side = LmcacheDisk(ours, process, folder / "log")
            side.start(Setup(plan, str(folder / "pages")))
            yield side
        finally:
            ours.close()
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """It ends by itself when its pipe is closed; if not, it is ended."""
    try:
        process.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_DEADLINE_S)
