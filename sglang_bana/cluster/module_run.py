"""How a Python module runs as a child: watched, with a deadline, ended when its parent dies."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bana.slo.errors import ConfigError

_POLL_S = 0.1
_LOG_TAIL_BYTES = 64 << 10

_BOUND_TO_PARENT = (
    "import runpy, sys; from sglang_bana.lifeline import die_with_parent; "
    "parent, module = sys.argv[1:3]; del sys.argv[1:3]; die_with_parent(int(parent)); "
    "runpy.run_module(module, run_name='__main__', alter_sys=True)"
)


@dataclass(frozen=True)
class Watch:
    """How a child is run: extra environment, its log, its deadline, what is told meanwhile."""

    environ: Mapping[str, str]
    log: Path
    deadline_s: float
    on_poll: Callable[[], None]


def run_module(module: str, arguments: list[str], watch: Watch) -> int:
    """Run `python -m module` and give its exit status.

    It is killed with this process, and on any exception; raises ConfigError after the deadline.
    """
    command = [sys.executable, "-P", "-c", _BOUND_TO_PARENT, str(os.getpid()), module, *arguments]
    with watch.log.open("wb") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **watch.environ},
        )
    try:
        return _wait_for(child, module, watch)
    finally:
        child.kill()
        child.wait()


def _wait_for(child: subprocess.Popen[bytes], module: str, watch: Watch) -> int:
    end_s = time.monotonic() + watch.deadline_s
    while time.monotonic() < end_s:
        watch.on_poll()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(timeout=_POLL_S)
    raise ConfigError(
        f"`python -m {module}` was not done after {watch.deadline_s:.0f} s and was ended; "
        f"see {watch.log} and try again"
    )


def read_tail(log: Path) -> list[str]:
    """The last lines of `log` that are not blank."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]
