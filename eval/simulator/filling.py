"""Which prompts a step computes, and how much of each.

order ──▶ head ──▶ candidates ──▶ governor: how many tokens ──▶ portions
             │ an unstarted one that finds no KV, no place, or too many half done stops all
             ▼ unstarted ones behind it, but for a lost one that leads for its share;
               half-done ones go on, so that room comes back
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from bana.eval.simulator.engine_spec import Overtaking
from bana.eval.simulator.jobs import Job, Stage
from bana.eval.simulator.log import Happening
from bana.eval.simulator.machine import Machine
from bana.slo.order import OrderPlan, QueueView


class Portion(msgspec.Struct, frozen=True):
    """The next `tokens` of a prompt; `before` are already there, or among the `loaded` pages that
    come from the arena.
    """

    job: Job
    tokens: int
    before: int
    loaded: int = 0

    @property
    def is_last(self) -> bool:
        """Whether the prompt is computed with it."""
        return self.before + self.tokens == self.job.target


class Filler:
    """Chooses and fills on the parts of one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._lost: frozenset[int] = frozenset()
        self._passed_over: Job | None = None

    def charge(self, tokens: int) -> int:
        """What so much of one prompt takes of a step's chunk: whole pages, as SGLang counts."""
        page = self._machine.spec.page_tokens
        return -(-tokens // page) * page

    def list_candidates(self, now_s: float) -> list[Job]:
        """The prompts that could run now, best first, as far as one step can take them.

        Empty where none could. Demotes whom the order gives up.
        """
        if not len(self._machine.waiting):
            return []
        found = list(self._admit(self._ask_order(now_s)))
        return found or self.list_started(now_s)

    def list_started(self, now_s: float) -> list[Job]:
        """The half-done prompts, best first."""
        machine = self._machine
        started = machine.waiting.list_started()
        if len(started) < 2:
            return started
        queue = machine.waiting.choose_columns(started)
        view = QueueView(queue, machine.load.load(), len(started))
        plan = machine.decider.decide_order(view, now_s)
        self._lost |= {started[row].index for row in plan.lost_rows}
        return [started[row] for row in plan.head]

    def fill(self, candidates: Sequence[Job], tokens: int) -> list[Portion]:
        """Begin the portions of a step of `tokens`; their KV pages are taken."""
        portions: list[Portion] = []
        half_done, pages = self._machine.waiting.started, 0
        is_stopped = False
        for job in candidates:
            is_new = job.stage is Stage.WAITING
            if tokens <= 0 or (is_new and is_stopped):
                continue
            portion = self._cut(job, tokens)
            if portion is None or not self._can_take(portion, half_done, pages):
                is_stopped = is_stopped or (is_new and job is not self._passed_over)
                continue
            self._start(job)
            lost_tokens = portion.tokens if job.index in self._lost else 0
            self._machine.load.observe_portion(portion.tokens, lost_tokens)
            half_done += int(is_new) - int(portion.is_last)
            pages += self._count_pages(portion)
            tokens -= self.charge(portion.tokens)
            portions.append(portion)
        # Only when all of them hold what is cached of them may anything be evicted.
        self._machine.kv.take(pages)
        return portions

    def _ask_order(self, now_s: float) -> Iterator[Job]:
        machine, waiting = self._machine, self._machine.waiting
        machine.rematcher.refresh()
        view = QueueView(waiting.columns(), machine.load.load(), machine.spec.head_rows)
        plan = machine.decider.decide_order(view, now_s)
        self._demote(plan, now_s)
        self._lost = frozenset(waiting.job_at(row).index for row in plan.lost_rows)
        row = plan.passed_over
        self._passed_over = None if row is None else waiting.job_at(row)
        head = map(waiting.job_at, plan.head)
        if machine.spec.overtaking is Overtaking.BETWEEN_CHUNKS:
            return head
        unstarted = (job for job in head if job.stage is Stage.WAITING)
        return itertools.chain(waiting.list_started(), unstarted)

    def _demote(self, plan: OrderPlan, now_s: float) -> None:
        for job in map(self._machine.waiting.job_at, plan.demote):
            self._machine.waiting.mark_demoted(job)
            self._machine.note(Happening.DEMOTED, now_s, job)

    def _admit(self, head: Iterable[Job]) -> Iterator[Job]:
        """Those of the head that have a place and room in the KV cache to finish."""
        room = _Room(self._machine)
        tokens = self._machine.spec.chunk_tokens
        is_stopped = False
        for job in head:
            if job.stage is Stage.WAITING:
                has_room = not is_stopped and room.admit(job)
                is_stopped = is_stopped or not (has_room or job is self._passed_over)
                if not has_room:
                    continue
            yield job
            tokens -= self.charge(job.remaining)
            if tokens <= 0:
                return

    def _cut(self, job: Job, tokens: int) -> Portion | None:
        """The next portion of at most `tokens`, in whole pages where it is not the last."""
        is_started = job.stage is Stage.STARTED
        before = job.done if is_started else job.matched
        loaded = 0 if is_started else job.loaded
        left = job.target - before
        if job.tail is not None and before < job.meet:
            left = job.meet - before
        if left <= tokens:
            return Portion(job, left, before, loaded)
        page = self._machine.spec.page_tokens
        whole = (before + tokens) // page * page - before
        return Portion(job, whole, before, loaded) if whole > 0 else None

    def _can_take(self, portion: Portion, half_done: int, pages: int) -> bool:
        """Whether a portion finds its pages beside those that are promised to others."""
        job, kv = portion.job, self._machine.kv
        needed = self._count_pages(portion) + pages
        if job.stage is Stage.STARTED:
            return needed <= kv.available_pages
        if not portion.is_last and half_done >= self._machine.spec.max_half_done:
            return False
        return needed <= kv.count_available(job)

    def _count_pages(self, portion: Portion) -> int:
        return portion.loaded + self._machine.kv.count_pages(portion.before, portion.tokens)

    def _start(self, job: Job) -> None:
        """Hold what is at hand of a prompt that begins; nothing of one that goes on."""
        if job.stage is Stage.STARTED:
            return
        machine = self._machine
        seen = job.cached
        machine.kv.start(job)
        if seen is not None and machine.restorer is not None and machine.restorer.has_met(job):
            # What it has computed before it met the rest was no cache's.
            job.cached = seen + job.loaded * machine.spec.page_tokens
        machine.waiting.mark_started(job)
        if machine.restorer is not None:
            machine.restorer.start(job)


class _Room:
    """What is left of the batch and of the KV cache while requests are admitted to one step.

    As SGLang's PrefillAdder counts: a request is admitted only if its whole prompt and its expected
    answer fit beside what those in the batch are expected to need.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._slots = machine.spec.max_running - machine.slots
        self._reserved_tokens = machine.reserve_tokens()

    def admit(self, job: Job) -> bool:
        """Whether a request finds room; if so it is counted."""
        machine, page = self._machine, self._machine.spec.page_tokens
        machine.kv.rematch(job)
        # One page more, since a request's last page is rarely full.
        needed = job.target - job.matched + machine.expect_outputs(job) + (job.loaded + 1) * page
        available = machine.kv.count_available(job) * page - self._reserved_tokens
        if self._slots < 1 or needed > available:
            return False
        self._slots -= 1
        self._reserved_tokens += needed
        return True
