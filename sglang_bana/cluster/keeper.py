"""Keeps one process running: starts it, notes how it ended, starts it again or gives up.

STARTING ──front door sees it──▶ UP ──▶ ended ──▶ WAITING ──delay──▶ STARTING
                                          └────────────────────────▶ GIVEN_UP
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import msgspec

from sglang_bana.cluster.child import Child
from sglang_bana.cluster.commands import Command
from sglang_bana.cluster.janitor import Janitor, Note
from sglang_bana.cluster.logs import cut_log, find_errors, read_lines
from sglang_bana.cluster.procfs import unlink_unused
from sglang_bana.cluster.restarts import (
    Ending,
    GiveUp,
    decide_restart,
    describe_status,
    keep_recent,
)
from sglang_bana.config import SupervisorConfig
from sglang_bana.leftovers import sweep
from sglang_bana.status import ProcessState

NOT_STARTED_STATUS = 1


class Stage(StrEnum):
    """Where a kept process stands."""

    STARTING = "starting"
    UP = "up"
    WAITING = "waiting to restart"
    GIVEN_UP = "given up"
    STOPPED = "stopped"


class Post(msgspec.Struct, frozen=True):
    """What a keeper is given: the command, its places, the rules, whom it tells."""

    command: Command
    log: Path
    temp_dir: Path
    rules: SupervisorConfig
    janitor: Janitor
    say: Callable[[str], None]


class Keeper:
    """One process and its history.

    `status` is how it last ended, None before that; `failure` why it was given up; `alive_s` when
    it last gave a sign of life, as far as the supervisor could see.
    """

    def __init__(self, post: Post) -> None:
        self.name = post.command.name
        self.log = post.log
        self.stage = Stage.WAITING
        self.child: Child | None = None
        self.since_s = time.monotonic()
        self.started_s = self.alive_s = self.since_s
        self.restarts = 0
        self.status: int | None = None
        self.errors: tuple[str, ...] = ()
        self.failure = ""
        self._post = post
        self._endings: tuple[Ending, ...] = ()
        self._segments: frozenset[str] = frozenset()
        self.was_up = False
        self._is_killed = False
        self._has_log_fault = False

    async def run(self) -> None:
        """Keep the process running until it is given up, or this task is cancelled."""
        while True:
            await self._live()
            if not await self._rest():
                return

    def note_up(self) -> None:
        """The front door sees it serving."""
        if self.stage is Stage.STARTING:
            self._post.say(f"{self.name} is up after {time.monotonic() - self.started_s:.0f} s")
            self._enter(Stage.UP)
            self.was_up = True
            self.note_segments()

    def note_segments(self) -> None:
        """Remember the shared memory it uses, and keep its log within its bound."""
        self._bound_log()
        if self.child is None or not self.child.is_running():
            return
        for segment in self.child.segments() - self._segments:
            self._segments |= {segment}
            self._post.janitor.tell(Note(segment=segment))

    def kill(self, reason: str) -> None:
        """End it at once; `run` decides what follows."""
        if self._is_killed:
            return
        self._is_killed = True
        self._post.say(f"{self.name} is killed: {reason}")
        self.note_segments()
        if self.child is not None:
            self.child.kill_group()

    def terminate(self) -> None:
        """Ask it to end."""
        self.note_segments()
        if self.child is not None:
            self.child.send_signal(signal.SIGTERM)

    async def wait_end(self) -> None:
        """Return once its main process has ended."""
        if self.child is not None:
            await asyncio.shield(self.child.status)

    async def clean_up(self) -> None:
        """Kill what is left of it and remove what it left: processes, memory, temporary files."""
        child = self.child
        if child is None:
            return
        child.kill_group()
        if not await child.wait_gone():
            self._post.say(f"{self.name}: processes of group {child.pid} do not end")
            return
        self._post.janitor.tell(Note(ended=child.pid))
        unlink_unused(self._segments)
        sweep(self._post.temp_dir)
        self._segments = frozenset()
        self._enter(Stage.STOPPED)

    def is_running(self) -> bool:
        """Whether its main process lives."""
        return self.child is not None and self.child.is_running()

    def describe(self) -> ProcessState:
        """The same for the state file."""
        return ProcessState(
            name=self.name,
            pid=self.child.pid if self.child is not None and self.is_running() else None,
            restarts=self.restarts,
            is_given_up=self.stage is Stage.GIVEN_UP,
            log=str(self.log),
            last_error=self._last_error(),
        )

    def last_line(self) -> str:
        """The newest line in its log that this life wrote."""
        lines = read_lines(self.log, self.child.log_offset if self.child else 0)
        return lines[-1] if lines else ""

    def _last_error(self) -> str | None:
        if self.status is None or self.status == 0:
            return None
        how = describe_status(self.status)
        return f"{how}: {self.errors[-1]}" if self.errors else how

    async def _live(self) -> None:
        """One life of the process, from its start to the end of what it left."""
        try:
            child = self._start()
        except OSError as error:
            # No memory, process or file was left for it: as good as an early end.
            self.child, self.was_up, self.status = None, False, NOT_STARTED_STATUS
            self._post.say(f"{self.name} cannot be started: {error}")
            return
        # Shielded: cancelling this task must not cancel what others wait for.
        self.status = await asyncio.shield(child.status)
        await self.clean_up()

    def _start(self) -> Child:
        command = self._post.command
        # What cannot be logged can still be run: the disk may be full.
        with contextlib.suppress(OSError), self._post.log.open("a", encoding="utf-8") as log:
            log.write(f"--- bana starts {self.name}: {shlex.join(command.argv)}\n")
        child = self.child = Child(command, self.log)
        self._post.janitor.tell(Note(group=child.pid, ticks=child.start_ticks))
        self.was_up = self._is_killed = False
        self._enter(Stage.STARTING)
        self.started_s = self.alive_s = self.since_s
        return child

    async def _rest(self) -> bool:
        """Wait before the next start; False when there is none."""
        status = self.status if self.status is not None else 0
        self._endings = keep_recent(
            (*self._endings, Ending(time.monotonic(), status, self.was_up)), self._post.rules
        )
        decision = decide_restart(self._endings, self._post.rules)
        self._note_errors()
        how = describe_status(status)
        if isinstance(decision, GiveUp):
            self._enter(Stage.GIVEN_UP)
            self.failure = f"{self.name} {how} and is given up: {decision.reason}"
            self._tell(self.failure)
            return False
        self._enter(Stage.WAITING)
        self._tell(f"{self.name} {how}; starts again in {decision.delay_s:g} s")
        await asyncio.sleep(decision.delay_s)
        self.restarts += 1
        return True

    def _bound_log(self) -> None:
        try:
            cut_log(self.log, self._post.rules.log_max_bytes)
            self._has_log_fault = False
        except OSError as error:
            # A log that grows is no reason to stop serving. Said once, until it can be cut again.
            if not self._has_log_fault:
                self._post.say(
                    f"{self.name}: its log cannot be cut ({error.strerror}): {self.log}; "
                    "free some space there"
                )
            self._has_log_fault = True

    def _note_errors(self) -> None:
        with contextlib.suppress(OSError):
            self.errors = find_errors(self.log, self.child.log_offset if self.child else 0)

    def _tell(self, line: str) -> None:
        self._post.say(line)
        for error in self.errors:
            self._post.say(f"    {error}")
        self._post.say(f"    log: {self.log}")

    def _enter(self, stage: Stage) -> None:
        self.stage = stage
        self.since_s = time.monotonic()
