"""One simulated instance, step by step.

heap of (time, sequence): arrival │ cancellation │ end of the step
                              │
between steps: who could run ──▶ governor ──▶ portions, decodes ──▶ so long it takes
at its end:    portions are cached, prompts have their first token, decodes their next
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from enum import IntEnum

import msgspec

from bana.eval.requests import Ending
from bana.eval.simulator.filling import Filler, Portion
from bana.eval.simulator.holds import awaits_answer, end_holds, meet
from bana.eval.simulator.jobs import Burst, Job, Stage
from bana.eval.simulator.log import Entry, Happening
from bana.eval.simulator.machine import Machine
from bana.eval.simulator.retraction import has_room, make_room, yield_worst
from bana.eval.simulator.service import StepTimes
from bana.slo.admission import ArrivalView, Verdict
from bana.slo.clock import ManualClock
from bana.slo.governor import StepKind, StepView
from bana.slo.order import QueueView
from bana.slo.pace import find_spare_s
from bana.slo.steps import StepShape, count_attended


class Timer(IntEnum):
    """What is due at a moment."""

    ARRIVAL = 0
    CANCELLATION = 1
    STEP_END = 2
    STORE = 3


class Visit(msgspec.Struct, frozen=True):
    """A request that will come, and when its client goes away (None: it waits)."""

    job: Job
    cancel_s: float | None = None


class Plan(msgspec.Struct, frozen=True):
    """What the next step computes. `has_candidates`: some prompt could run."""

    portions: tuple[Portion, ...]
    does_decode: bool
    has_candidates: bool

    @property
    def is_empty(self) -> bool:
        return not self.portions and not self.does_decode


class Step(msgspec.Struct, frozen=True):
    """The step that runs. `do_prompts_wait`: some could have run, and decodes go first."""

    portions: tuple[Portion, ...]
    shape: StepShape
    begun_s: float
    time_s: float
    do_prompts_wait: bool


class Instance:
    """Runs one workload. O(log n) an event; a step costs its portions and its policies."""

    def __init__(self, machine: Machine, times: StepTimes, clock: ManualClock) -> None:
        self._machine = machine
        self._times = times
        self._clock = clock
        self._filler = Filler(machine)
        self._heap: list[tuple[float, int, Timer, Job | None]] = []
        self._sequence = 0
        self._step: Step | None = None
        self._decodes_since_prefill = 0
        self._is_stuck = False
        self._gone: list[Job] = []
        self._wake_s = math.inf

    def run(self, visits: Sequence[Visit], until_s: float) -> None:
        """Serve all visits, at most until `until_s`."""
        for visit in visits:
            self._schedule(visit.job.budget.arrival_s, Timer.ARRIVAL, visit.job)
            if visit.cancel_s is not None:
                self._schedule(visit.cancel_s, Timer.CANCELLATION, visit.job)
        while self._heap and self._heap[0][0] <= until_s:
            at_s = self._heap[0][0]
            self._clock.advance(max(0.0, at_s - self._clock.now_s()))
            while self._heap and self._heap[0][0] <= at_s:
                _, _, timer, job = heapq.heappop(self._heap)
                self._meet(timer, job)
            if self._step is None:
                self._begin_step()
            self._await_store()

    def _schedule(self, at_s: float, timer: Timer, job: Job | None) -> None:
        heapq.heappush(self._heap, (at_s, self._sequence, timer, job))
        self._sequence += 1

    def _meet(self, timer: Timer, job: Job | None) -> None:
        if timer is Timer.STORE:
            self._wake_store()
        elif job is None:
            self._end_step()
        elif timer is Timer.ARRIVAL:
            self._arrive(job)
        else:
            self._cancel(job)

    def _arrive(self, job: Job) -> None:
        machine, now_s = self._machine, self._clock.now_s()
        machine.note(Happening.ARRIVED, now_s, job)
        machine.queue(job)
        self._is_stuck = False
        if machine.decider.does_admit_all:
            return
        verdict = machine.decider.decide_admission(self._view_arrival(job), now_s).verdict
        if verdict is not Verdict.ADMITTED:
            machine.leave_queue(job)
            self._end(job, Ending.REJECTED, Happening.REJECTED)

    def _view_arrival(self, job: Job) -> ArrivalView:
        """What stands before a request, in the order that the queue would be served in."""
        machine, waiting = self._machine, self._machine.waiting
        machine.rematcher.refresh()
        columns = waiting.columns()
        view = QueueView(columns, machine.load.load(), len(waiting))
        head = machine.decider.decide_order(view, self._clock.now_s()).head
        own = waiting.row_of(job)
        before = head[: head.index(own)]
        return ArrivalView(
            budget=job.budget,
            service_s=float(columns.service_s[own]),
            ahead_s=sum(float(columns.service_s[row]) for row in before),
            inflation=view.load.inflation,
        )

    def _cancel(self, job: Job) -> None:
        """Its client went away; what the running step does for it, it does to its end."""
        if job.stage is Stage.OVER:
            return
        job.ending, job.end_s = Ending.CANCELLED, self._clock.now_s()
        self._gone.append(job)
        if self._step is None:
            self._remove_gone()

    def _remove_gone(self) -> None:
        """Whoever went away gives back what it holds; what it has computed stays cached."""
        machine = self._machine
        for job in self._gone:
            if job.stage is Stage.RUNNING:
                machine.running.leave(job)
                machine.kv.finish(job, job.length - 1)
            elif job.stage is Stage.STARTED:
                machine.leave_queue(job)
                machine.kv.drop(job, job.done)
            elif job.stage is Stage.WAITING:
                machine.leave_queue(job)
            machine.leave_store(job)
            if job.stage is not Stage.OVER:
                self._end(job, Ending.CANCELLED, Happening.CANCELLED)
        self._gone.clear()

    def _begin_step(self) -> None:
        now_s = self._clock.now_s()
        if end_holds(self._machine, now_s):
            self._is_stuck = False
        if awaits_answer(self._machine, now_s):
            return
        plan = self._plan_step(now_s)
        if plan.is_empty:
            self._machine.load.observe_idle()
            return
        shape = self._shape_step(plan)
        time_s = self._times.estimate_step_s(shape)
        if self._machine.restorer is not None:
            loaded = sum(portion.loaded for portion in plan.portions)
            time_s = max(time_s, self._machine.restorer.store.estimate_copy_s(loaded))
        do_prompts_wait = plan.has_candidates and not plan.portions
        self._step = Step(plan.portions, shape, now_s, time_s, do_prompts_wait)
        self._schedule(now_s + time_s, Timer.STEP_END, None)
        self._note_step(plan, shape, now_s)

    def _wake_store(self) -> None:
        """What is due in the store happens; who is held looks at it between steps."""
        self._wake_s = math.inf
        if self._machine.restorer is not None:
            self._machine.restorer.store.advance(self._clock.now_s())

    def _await_store(self) -> None:
        """Look again when something comes from the store, or, between steps, a hold ends."""
        restorer = self._machine.restorer
        if restorer is None:
            return
        next_s = restorer.store.next_s
        if self._step is None:
            next_s = min(next_s, restorer.holds.next_end_s)
        if next_s < self._wake_s:
            self._wake_s = next_s
            self._schedule(next_s, Timer.STORE, None)

    def _shape_step(self, plan: Plan) -> StepShape:
        running = self._machine.running
        return StepShape(
            prefill_tokens=sum([p.tokens for p in plan.portions]),
            attended_tokens=sum([count_attended(p.tokens, p.before) for p in plan.portions]),
            decode_requests=len(running) if plan.does_decode else 0,
            context_tokens=running.context_tokens if plan.does_decode else 0,
        )

    def _note_step(self, plan: Plan, shape: StepShape, now_s: float) -> None:
        machine = self._machine
        ending = sum([portion.is_last for portion in plan.portions])
        entry = Entry(
            kind=Happening.STEP,
            at_s=now_s,
            subject=shape.prefill_tokens,
            decodes=shape.decode_requests,
            half_done=machine.waiting.started - ending,
            available_pages=machine.kv.available_pages,
        )
        machine.log.add(entry)

    def _plan_step(self, now_s: float) -> Plan:
        """What the next step computes; its KV pages are taken."""
        machine = self._machine
        candidates = [] if self._is_stuck else self._filler.list_candidates(now_s)
        if not candidates:
            # Nothing new can run until something comes or goes.
            self._is_stuck = True
            return Plan((), self._take_decodes(now_s), has_candidates=False)
        plan = machine.decider.decide_step(self._view_step(candidates, now_s))
        if plan.kind is StepKind.DECODE and not len(machine.running):
            # All that seemed to decode has ended: the engine reads that, and decides anew.
            machine.showing.read_now()
            plan = machine.decider.decide_step(self._view_step(candidates, now_s))
        portions: list[Portion] = []
        if plan.kind is not StepKind.DECODE:
            portions = self._fill(candidates, plan.prefill_tokens, now_s)
        if not portions:
            return Plan((), self._take_decodes(now_s), has_candidates=True)
        does_mix = plan.kind is StepKind.MIXED and len(machine.running) > 0 and has_room(machine)
        if does_mix:
            machine.kv.take(machine.running.count_pages_needed())
        return Plan(tuple(portions), does_mix, has_candidates=True)

    def _fill(self, candidates: Sequence[Job], tokens: int, now_s: float) -> list[Portion]:
        """Portions of so many tokens; empty only where decodes can go on instead."""
        machine, filler = self._machine, self._filler
        tokens = max(tokens, machine.spec.page_tokens)
        portions = filler.fill(candidates, tokens) or filler.fill(
            filler.list_started(now_s), tokens
        )
        while not portions and not len(machine.running):
            yield_worst(machine, now_s)
            portions = filler.fill(filler.list_started(now_s), tokens)
        return portions

    def _take_decodes(self, now_s: float) -> bool:
        """Whether the requests that decode can do so now; their pages are taken."""
        machine = self._machine
        if not len(machine.running):
            return False
        before = machine.slots
        make_room(machine, now_s)
        self._is_stuck = self._is_stuck and machine.slots == before
        machine.kv.take(machine.running.count_pages_needed())
        return True

    def _view_step(self, candidates: Sequence[Job], now_s: float) -> StepView:
        machine, spec = self._machine, self._machine.spec
        first, running, model = candidates[0], machine.running, machine.predictor.belief.model
        fading = running.list_fading(machine.showing, now_s)
        decodes = StepShape(
            decode_requests=len(running) + len(fading),
            context_tokens=running.context_tokens + sum(job.length for job in fading),
        )
        decode_s = model.estimate_step_s(decodes)
        return StepView(
            model=model,
            decode_requests=decodes.decode_requests,
            context_tokens=decodes.context_tokens,
            tightest_tpot_s=running.find_tightest_tpot_s(fading),
            spare_s=find_spare_s(running.list_paces(machine.showing, now_s), now_s, decode_s),
            prefill_tokens=sum(self._filler.charge(job.remaining) for job in candidates),
            prefix_tokens=first.target - first.remaining,
            decodes_since_prefill=self._decodes_since_prefill,
            max_chunk_tokens=spec.chunk_tokens,
            page_tokens=spec.page_tokens,
            can_mix=spec.can_mix,
            tightest_ttft_s=min(job.budget.ttft_s for job in candidates),
        )

    def _end_step(self) -> None:
        step, now_s = self._step, self._clock.now_s()
        assert step is not None
        self._step = None
        self._machine.showing.note_step(step.begun_s, now_s)
        self._measure(step)
        if step.shape.decode_requests:
            for job in self._machine.running.beat(now_s):
                self._finish(job)
        for portion in step.portions:
            self._advance(portion, now_s)
        self._is_stuck = self._is_stuck and not step.portions and not self._gone
        self._remove_gone()

    def _measure(self, step: Step) -> None:
        """What the engine learns from a step: its time, and who waited for it."""
        machine = self._machine
        machine.predictor.belief.observe(step.shape, step.time_s)
        if step.portions:
            machine.load.observe_chunk(step.shape, step.time_s)
            # The decodes had their turn in a mixed step.
            self._decodes_since_prefill = int(step.shape.decode_requests > 0)
            return
        self._decodes_since_prefill += 1
        if step.do_prompts_wait:
            machine.load.observe_decode(step.time_s)
        else:
            machine.load.end_wait()

    def _advance(self, portion: Portion, now_s: float) -> None:
        """A portion is computed; with the last one the next token is there."""
        machine, job = self._machine, portion.job
        job.done += portion.tokens
        machine.kv.publish(job)
        if machine.restorer is not None:
            machine.restorer.save(job, portion.before, now_s)
        if job.done < job.target:
            if job.tail is not None and job.done >= job.meet:
                meet(machine, job, now_s)
            else:
                machine.rematcher.predict(job)
            return
        machine.leave_queue(job)
        job.emitted += 1
        machine.note(Happening.FIRST_TOKEN, now_s, job)
        if job.outputs_left:
            machine.running.join(job, now_s)
            return
        beat = len(machine.running.beats_s)
        job.bursts.append(Burst(now_s, beat, beat))
        machine.running.fade(job, now_s)
        self._finish(job)

    def _finish(self, job: Job) -> None:
        self._machine.kv.finish(job, job.length - 1)
        self._is_stuck = False
        self._end(job, Ending.FINISHED, Happening.FINISHED)

    def _end(self, job: Job, ending: Ending, happening: Happening) -> None:
        """A request is over; one whose client went away before stays cancelled."""
        job.stage = Stage.OVER
        if job.ending is None:
            job.ending, job.end_s = ending, self._clock.now_s()
        self._machine.note(happening, self._clock.now_s(), job)
