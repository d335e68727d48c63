"""One running child in its own session: started, watched without a thread, killed as a group."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from sglang_bana.cluster.commands import Command, inherit_environment
from sglang_bana.cluster.logs import open_log
from sglang_bana.cluster.procfs import (
    list_existing_segments,
    list_group,
    list_segments,
    read_start_ticks,
)
from sglang_bana.lifeline import die_with_parent

GROUP_DEADLINE_S = 5.0
POLL_S = 0.02


class Child:
    """A child process. Must be built inside a running event loop, on the main thread.

    The kernel kills the child when the thread that forked it ends, so no other thread may start
    one. `log_offset` is where this life's part of the log begins.
    """

    def __init__(self, command: Command, log: Path) -> None:
        self.name = command.name
        self.log = log
        self.log_offset = log.stat().st_size if log.exists() else 0
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._is_gone = False
        self._foreign = list_existing_segments()
        self._process = _spawn(command, log)
        self.pid = self._process.pid
        self.start_ticks = read_start_ticks(self.pid) or 0
        self._pidfd = os.pidfd_open(self.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._note_end)

    def is_running(self) -> bool:
        """Whether its main process has not ended."""
        return not self.status.done()

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the main process, if it still runs."""
        if self.is_running():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill_group(self) -> None:
        """Kill the main process and whatever it started."""
        if self._has_members():
            _kill_group(self.pid)

    async def wait_gone(self) -> bool:
        """Wait until no process of the group runs; False after GROUP_DEADLINE_S."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + GROUP_DEADLINE_S
        while self._has_members():
            if loop.time() > end_s:
                return False
            await asyncio.sleep(POLL_S)
        return True

    def segments(self) -> frozenset[str]:
        """The shared memory that the group has mapped now, and that was not there before it."""
        mapped = frozenset().union(*(list_segments(pid) for pid in list_group(self.pid)))
        return mapped - self._foreign

    def _has_members(self) -> bool:
        """Whether a process of the group runs.

        Its number stays taken while the main process is not reaped, or others live on in it. Once
        none does, the number may be given to a stranger, so it is never looked up again.
        """
        self._is_gone = self._is_gone or not (self.is_running() or list_group(self.pid))
        return not self._is_gone

    def _note_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        # Before the main process is reaped its number cannot have been given to another group.
        _kill_group(self.pid)
        status = self._process.wait()
        os.close(self._pidfd)
        self.status.set_result(status)


def _spawn(command: Command, log: Path) -> subprocess.Popen[bytes]:
    log_fd = open_log(log)
    try:
        return subprocess.Popen(
            command.argv,
            env={**inherit_environment(os.environ), **command.env},
            stdin=subprocess.DEVNULL,
            stdout=log_fd,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=command.pass_fds,
            preexec_fn=_tie(os.getpid(), command.cores),
        )
    finally:
        os.close(log_fd)


def _tie(parent_pid: int, cores: tuple[int, ...]) -> Callable[[], None]:
    """What runs between fork and exec: no window in which the child could outlive its parent."""

    def tie() -> None:
        die_with_parent(parent_pid)
        if cores:
            os.sched_setaffinity(0, cores)

    return tie


def _kill_group(pgid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, signal.SIGKILL)
