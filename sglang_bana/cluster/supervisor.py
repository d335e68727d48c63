"""Runs a cluster from start to end: keeps its processes, watches them, shuts them down.

starting ──all up──▶ ready ◀──▶ degraded (something is down) ──signal──▶ draining ──▶ stopped
   └──────────── every instance, or the front door, is given up ────────────▶ failed
"""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Sequence
from enum import StrEnum

import aiohttp
import msgspec

from bana.slo.errors import BanaError
from sglang_bana.cluster.attached import AttachedServers
from sglang_bana.cluster.janitor import Janitor
from sglang_bana.cluster.keeper import Keeper, Stage
from sglang_bana.cluster.progress import Reporter, Row
from sglang_bana.cluster.restarts import REFUSED_STATUS
from sglang_bana.cluster.run_dir import RunDir
from sglang_bana.cluster.shutdown import StopRules, cancel_all, stop_everything
from sglang_bana.cluster.watch import Life, decide_kill, fetch_status, index_instances, is_up
from sglang_bana.config import SupervisorConfig
from sglang_bana.status import FrontDoorStatus, RunState

WATCH_S = 0.5
SURVEY_S = 15.0
# `timeout` and service managers signal a process and then its whole group: that is one request.
SAME_SIGNAL_S = 0.25
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Phase(StrEnum):
    """Where the whole cluster stands."""

    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


class ClusterFailed(BanaError):
    """Nothing can serve any more. `status` is what the launch ends with."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Orders(msgspec.Struct, frozen=True):
    """What a supervisor runs: who it is and where it answers, its rules, what to say when ready.

    `listener` is closed once the front door has ended for good.
    """

    identity: RunState
    run_dir: RunDir
    listener: socket.socket
    rules: SupervisorConfig
    stop_rules: StopRules
    control_key: str
    greeting: tuple[str, ...] = ()


class Supervisor:
    """One cluster's life; `run` is called once. Without its store the cluster serves on."""

    def __init__(
        self,
        orders: Orders,
        front_door: Keeper,
        instances: Sequence[Keeper],
        reporter: Reporter,
        store: Keeper | None = None,
    ) -> None:
        self.phase = Phase.STARTING
        self._orders = orders
        self._front_door = front_door
        self._instances = tuple(instances)
        self._store = (store,) if store is not None else ()
        self._reporter = reporter
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._attached = AttachedServers(str(front_door.log))
        self._seen: FrontDoorStatus | None = None
        self._written: RunState | None = None
        self._was_ready = False
        self._began_s = self._answered_s = self._surveyed_s = time.monotonic()
        self._stopped_s = self._began_s

    async def run(self, janitor: Janitor) -> None:
        """Return when told to stop; ClusterFailed when nothing can serve any more."""
        self._catch_signals()
        tasks = [asyncio.create_task(keeper.run()) for keeper in self._keepers()]
        tasks.append(asyncio.create_task(self._watch()))
        end = Phase.FAILED
        try:
            await self._wait_for_end(tasks)
            end = Phase.STOPPED if self._stop.is_set() else Phase.FAILED
        finally:
            await self._shut_down(tasks, end)
            janitor.dismiss()
        if end is Phase.FAILED:
            raise ClusterFailed(self._describe_failure(), self._choose_status())

    def _keepers(self) -> tuple[Keeper, ...]:
        return (*self._store, *self._instances, self._front_door)

    def _catch_signals(self) -> None:
        for number in SIGNALS:
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                # `nohup` asked for exactly that.
                continue
            asyncio.get_running_loop().add_signal_handler(number, self._note_signal)

    def _note_signal(self) -> None:
        now_s = time.monotonic()
        if not self._stop.is_set():
            self._stop.set()
            self._stopped_s = now_s
        elif now_s - self._stopped_s > SAME_SIGNAL_S and not self._hurry.is_set():
            self._reporter.say("stopping at once")
            self._hurry.set()

    async def _wait_for_end(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Return on a signal or when nothing can serve; raise what a task raised."""
        stop = asyncio.create_task(self._wait_for_stop())
        pending = {stop, *tasks}
        try:
            while not self._stop.is_set() and not self._has_failed():
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            stop.cancel()

    async def _wait_for_stop(self) -> None:
        await self._stop.wait()

    def _has_failed(self) -> bool:
        own = [keeper.stage is Stage.GIVEN_UP for keeper in self._instances]
        return self._front_door.stage is Stage.GIVEN_UP or (bool(own) and all(own))

    def _choose_status(self) -> int:
        is_refused = any(keeper.status == REFUSED_STATUS for keeper in self._keepers())
        return REFUSED_STATUS if is_refused and not self._was_ready else 1

    def _describe_failure(self) -> str:
        failed = next(keeper for keeper in self._keepers() if keeper.failure)
        said = f": {failed.errors[-1]}" if failed.errors else ""
        return f"{failed.failure}{said}; log: {failed.log}"

    async def _shut_down(self, tasks: Sequence[asyncio.Task[None]], end: Phase) -> None:
        given_up = {k.name for k in self._keepers() if k.stage is Stage.GIVEN_UP}
        self._enter(Phase.DRAINING)
        rules = self._orders.stop_rules
        if end is Phase.STOPPED:
            self._reporter.say(
                f"draining: running requests get up to {rules.drain_timeout_s:g} s; "
                "interrupt again to stop at once"
            )
        await cancel_all(tasks)
        await stop_everything(
            self._front_door,
            self._orders.listener,
            (self._instances, self._store),
            rules,
            self._hurry,
        )
        for keeper in self._keepers():
            if keeper.name in given_up:
                keeper.stage = Stage.GIVEN_UP
        self._enter(end)
        self._orders.run_dir.remove_leftovers()
        self._reporter.say(str(end))

    async def _watch(self) -> None:
        orders = self._orders
        async with aiohttp.ClientSession() as session:
            while True:
                self._reporter.show(self._rows())
                self._write_state()
                status = await fetch_status(session, orders.identity.url, orders.control_key)
                self._seen = status
                self._judge_front_door(status)
                self._judge_instances(status)
                self._judge_store(status)
                self._judge_phase(status)
                self._survey()
                await asyncio.sleep(WATCH_S)

    def _judge_front_door(self, status: FrontDoorStatus | None) -> None:
        door, now_s = self._front_door, time.monotonic()
        if status is not None and door.child is not None and status.pid == door.child.pid:
            self._answered_s = now_s
            door.note_up()
            return
        silent_s = now_s - max(self._answered_s, door.started_s)
        if door.is_running() and silent_s > self._orders.rules.kill_after_s:
            door.kill(f"it has not answered for {silent_s:.0f} s (supervisor.kill_after_s)")

    def _judge_instances(self, status: FrontDoorStatus | None) -> None:
        seen, now_s = index_instances(status), time.monotonic()
        for keeper in self._instances:
            if not keeper.is_running():
                continue
            age_s, found = now_s - keeper.started_s, seen.get(keeper.name)
            if status is None:
                keeper.alive_s = now_s
            elif found is not None and found.silent_s is not None:
                keeper.alive_s = max(keeper.alive_s, now_s - found.silent_s)
            if is_up(found, age_s):
                keeper.note_up()
            life = Life(age_s, keeper.was_up, now_s - keeper.alive_s)
            reason = decide_kill(life, self._orders.rules)
            if reason is not None:
                keeper.kill(reason)

    def _judge_store(self, status: FrontDoorStatus | None) -> None:
        """Up once it answers the front door; killed when it does not for too long."""
        now_s = time.monotonic()
        for keeper in self._store:
            if keeper.child is None or not keeper.is_running():
                continue
            seen = None if status is None else status.store
            if status is None:
                keeper.alive_s = now_s
            elif seen is not None and seen.report.pid == keeper.child.pid:
                keeper.alive_s = max(keeper.alive_s, now_s - seen.silent_s)
                keeper.note_up()
            life = Life(now_s - keeper.started_s, keeper.was_up, now_s - keeper.alive_s)
            reason = decide_kill(life, self._orders.rules)
            if reason is not None:
                keeper.kill(reason)

    def _judge_phase(self, status: FrontDoorStatus | None) -> None:
        wanted = [k for k in self._keepers() if k.stage is not Stage.GIVEN_UP]
        serves = all(keeper.stage is Stage.UP for keeper in wanted)
        if not self._instances:
            serves = serves and status is not None and status.is_ready
        is_whole = serves and len(wanted) == len(self._keepers())
        if serves and not self._was_ready:
            self._was_ready = True
            for line in self._orders.greeting:
                self._reporter.say(line)
        if self._was_ready:
            self._enter(Phase.READY if is_whole else Phase.DEGRADED)
            return
        waited_s = time.monotonic() - self._began_s
        if not self._instances and waited_s > self._orders.rules.start_timeout_s:
            known = self._attached.describe() or "nothing is known of them"
            raise BanaError(
                f"no attached server was usable within {waited_s:.0f} s "
                f"(supervisor.start_timeout_s): {known}; check the URLs and keys given with "
                "--upstream and --upstream-key-file"
            )

    def _survey(self) -> None:
        if time.monotonic() - self._surveyed_s > SURVEY_S:
            self._surveyed_s = time.monotonic()
            for keeper in self._keepers():
                keeper.note_segments()

    def _rows(self) -> tuple[Row, ...]:
        now_s = time.monotonic()
        awaited = [k for k in self._keepers() if k.stage in (Stage.STARTING, Stage.WAITING)]
        own = (Row(k.name, k.stage, now_s - k.since_s, k.last_line(), str(k.log)) for k in awaited)
        attached = () if self._instances else self._attached.rows(self._seen, now_s)
        return (*own, *attached)

    def _enter(self, phase: Phase) -> None:
        if phase is not self.phase and {phase, self.phase} == {Phase.READY, Phase.DEGRADED}:
            down = [f"{k.name} {k.stage}" for k in self._keepers() if k.stage is not Stage.UP]
            self._reporter.say(f"{phase}: {', '.join(down)}" if down else str(phase))
        self.phase = phase
        self._write_state()

    def _write_state(self) -> None:
        state = msgspec.structs.replace(
            self._orders.identity,
            phase=self.phase,
            processes=tuple(keeper.describe() for keeper in self._keepers()),
        )
        if state == self._written:
            return
        try:
            self._orders.run_dir.write_state(state)
            self._written = state
        except OSError as error:
            # A full disk is no reason to stop serving. Said once, until it can be written again.
            if self._written is not None:
                self._reporter.say(f"{self._orders.run_dir.state_file}: {error.strerror}")
            self._written = None
