"""Runs a workload against a server in open loop: no answer is ever waited for.

open connections ──▶ zero ──▶ each request at its due time ──▶ drain ──▶ LoadRun
                       beside: timeouts, probes, samples, progress
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
import uuid
from collections.abc import AsyncIterator, Coroutine, Sequence
from random import Random

from bana.eval.client.call import Call
from bana.eval.client.caller import Caller
from bana.eval.client.errors import LoadError
from bana.eval.client.interruption import stopped_by_signals
from bana.eval.client.outbox import Outbox
from bana.eval.client.plan import ClientPlan
from bana.eval.client.probing import Prober
from bana.eval.client.prompts import PromptMaker
from bana.eval.client.quiet import without_gc
from bana.eval.client.sampling import Sampler
from bana.eval.client.shapes import Shaper
from bana.eval.client.validity import judge_validity
from bana.eval.client.watch import Tally, Watch
from bana.eval.requests import Ending, LoadRun, Phase, Workload
from bana.slo.errors import ConfigError

# From here to schedule zero everything that runs beside the load is started.
LEAD_S = 0.1
SHOW_S = 0.5
# With less time than this until the next request is due, nothing is written ahead.
WRITE_AHEAD_S = 0.002
# So many requests that are due are sent before answers are looked at again.
BURST = 8
FILES_BESIDE = 64

Task = Coroutine[None, None, None]


def run_load(workload: Workload, plan: ClientPlan, watch: Watch) -> LoadRun:
    """Offer the whole workload and say what came of each request.

    ConfigError when the plan cannot carry the workload, LoadError when the server cannot be
    reached to begin with. Later failures of the server are endings of requests. Ctrl-C or SIGTERM
    ends the run early; what was offered until then is returned.
    """
    check_plan(workload, plan)
    run = _Run(workload, plan, watch)
    with without_gc():
        # It returns nothing: asyncio makes a text of what a main task has returned, and that of a
        # run of many requests takes seconds.
        asyncio.run(run.carry_out())
    return run.tell()


def check_plan(workload: Workload, plan: ClientPlan) -> None:
    """ConfigError when the plan cannot carry the workload."""
    Shaper(plan).check(workload.requests)
    _require_files(plan.max_outstanding + plan.spare_connections + FILES_BESIDE)


class _Run:
    """One run."""

    def __init__(self, workload: Workload, plan: ClientPlan, watch: Watch) -> None:
        self._workload = workload
        self._plan = plan
        self._watch = watch
        self._run_id = uuid.uuid4().hex[:12]
        self._shaper = Shaper(plan)
        self._outbox = Outbox(workload.requests, self._shaper, self._run_id)
        self._caller = Caller(plan, self._note_over)
        self._calls: list[Call] = []
        self._done = 0
        self._failed = 0
        self._zero_s = 0.0
        self._end_s = 0.0
        self._is_whole = False
        self._unbroken = 0
        self._prober = self._make_prober()
        self._sampler = self._make_sampler()

    async def carry_out(self) -> None:
        """Offer everything, or as much as a signal allows, and end it."""
        prober, sampler = self._prober, self._sampler
        await open_caller(self._caller, self._plan)
        self._zero_s = time.monotonic() + LEAD_S
        beside: list[Task] = [
            self._caller.watch_timeouts(),
            self._caller.keep_spare(),
            self._show_progress(),
        ]
        if prober is not None:
            beside += [prober.probe(self._zero_s), prober.watch_timeouts()]
        if sampler is not None:
            beside.append(sampler.sample(self._zero_s))
        self._watch.begin(self._plan.label, len(self._workload.requests))
        try:
            async with running_beside(beside):
                self._is_whole = await self._offer_until_stopped()
            self._end_s = time.monotonic()
            if prober is not None and self._is_whole:
                await prober.drain()
        finally:
            for part in (self._caller, prober, sampler):
                if part is not None:
                    await part.close()
            self._watch.end()

    def tell(self) -> LoadRun:
        """What was measured."""
        observed = tuple(call.observe(self._zero_s) for call in self._calls)
        return LoadRun(
            observed=observed,
            probes=() if self._prober is None else self._prober.list_probes(self._zero_s),
            samples=() if self._sampler is None else self._sampler.list_samples(),
            window_s=self._measure_window(),
            duration_s=max(0.0, self._end_s - self._zero_s),
            validity=judge_validity(observed, self._plan),
            is_interrupted=not self._is_whole,
        )

    async def _offer_until_stopped(self) -> bool:
        """Offer and drain; False when a signal ended it before."""
        stop = asyncio.Event()
        offering = asyncio.create_task(self._offer_and_drain())
        stopping = asyncio.create_task(stop.wait())
        with stopped_by_signals(stop.set):
            try:
                await asyncio.wait({offering, stopping}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopping.cancel()
                offering.cancel()
        if offering.done() and not offering.cancelled():
            offering.result()
            return True
        self._watch.say("interrupted: what is out is ended, what was measured is kept")
        self._caller.give_up_all("interrupted")
        return False

    async def _offer_and_drain(self) -> None:
        for offered in self._workload.requests:
            due_s = self._zero_s + offered.due_s
            await self._wait_until(due_s)
            letter = self._outbox.take()
            call = Call(due_s, letter.offered, letter.request_id, self._shaper.reader())
            self._calls.append(call)
            self._caller.start(call, letter.request)
        await self._caller.drain(self._plan.timeouts.drain_s)

    async def _wait_until(self, due_s: float) -> None:
        """Sleep to an absolute time; requests that are due together go out in bursts."""
        self._unbroken += 1
        while (left_s := due_s - time.monotonic()) > 0 or self._unbroken > BURST:
            self._unbroken = 0
            is_time = left_s > WRITE_AHEAD_S and self._outbox.write_ahead()
            await asyncio.sleep(0 if is_time else max(0.0, left_s))

    async def _show_progress(self) -> None:
        last_due_s = self._workload.requests[-1].due_s if self._workload.requests else 0.0
        while True:
            await asyncio.sleep(SHOW_S)
            self._watch.show(self._count(self._zero_s + last_due_s - time.monotonic()))

    def _count(self, left_s: float) -> Tally:
        return Tally(len(self._calls), self._done, self._failed, max(0.0, left_s))

    def _note_over(self, call: Call) -> None:
        self._done += 1
        assert call.conclusion is not None
        self._failed += call.conclusion.ending not in (Ending.FINISHED, Ending.CANCELLED)

    def _measure_window(self) -> float:
        """The window, or as much of it as there was before an interruption."""
        if self._is_whole:
            return self._workload.window_s
        dues_s = (r.due_s for r in self._workload.requests if r.phase is Phase.WINDOW)
        start_s = next(dues_s, 0.0)
        return max(0.0, min(self._workload.window_s, self._end_s - self._zero_s - start_s))

    def _make_prober(self) -> Prober | None:
        if self._plan.probe_rps is None:
            return None
        prompts = PromptMaker(self._workload.requests, Random(self._run_id))
        return Prober(self._plan, prompts, self._run_id)

    def _make_sampler(self) -> Sampler | None:
        return None if self._plan.sample_interval_s is None else Sampler(self._plan)


async def open_caller(caller: Caller, plan: ClientPlan) -> None:
    """Open its connections; LoadError when there is nobody to measure."""
    try:
        await caller.open()
    except OSError as error:
        reason = str(error) or f"no connection within {plan.timeouts.connect_s:g} s"
        raise LoadError(
            f"cannot connect to {plan.target.url}: {reason}; is the server up, and is this its URL?"
        ) from None


@contextlib.asynccontextmanager
async def running_beside(coroutines: Sequence[Task]) -> AsyncIterator[None]:
    """All of them run while the block does; one that fails ends the block with its error."""
    owner = asyncio.current_task()
    assert owner is not None
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]

    def note_end(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            owner.cancel()

    for task in tasks:
        task.add_done_callback(note_end)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end


def _require_files(wanted: int) -> None:
    """Allow this process as many open sockets; ConfigError when it may not have them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise ConfigError(
            f"max_outstanding wants {wanted} open files, this process may have {hard}: lower "
            "max_outstanding, or raise the limit (ulimit -n)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
