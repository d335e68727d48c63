"""Asks the policies on behalf of one scheduler: a view, a plan, and its effects, each pass.

    inputs (rank 0's clock and model) ─▶ order ─▶ step ─▶ decode, or: share or yield ─▶ admission
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

import msgspec
from sglang.srt.mem_cache.common import match_kv_cache

from bana.slo.admission import Admission, AdmissionDecision, ArrivalView, Verdict
from bana.slo.budget import Budget, read_budget
from bana.slo.governor import Governor, StepKind, StepPlan, StepView
from bana.slo.limits import Slo
from bana.slo.order import OrderPlan, QueueOrder, QueueView
from sglang_bana.engine.counts import PassCounts
from sglang_bana.engine.effects import Effects, list_ahead
from sglang_bana.engine.passes import PassInputs, PassPlan
from sglang_bana.engine.waiting_room import Slots, Standing, WaitingRoom, list_slots

# Matching a prompt against the tree costs up to a tenth of a millisecond.
REMEASURED_ROWS = 4

T = TypeVar("T")
logger = logging.getLogger(__name__)


class Policies(msgspec.Struct, frozen=True):
    """Who answers each question; None leaves it to SGLang."""

    order: QueueOrder | None
    governor: Governor | None
    admission: Admission


class Terms(msgspec.Struct, frozen=True):
    """What decisions of this engine are bound by."""

    default: Slo
    boot_id: str
    head_rows: int
    max_started: int
    seed: int


class Conductor:
    """Decides for one scheduler; its thread alone calls it. Every rank decides the same.

    A policy that fails is counted and reported once; that decision is then SGLang's own.
    """

    def __init__(self, scheduler: Any, policies: Policies, terms: Terms) -> None:
        self.counts = PassCounts()
        self.room = WaitingRoom()
        self.effects = Effects(scheduler, self.room, self.counts)
        self._scheduler = scheduler
        self._policies = policies
        self._terms = terms
        self._rng = Random(terms.seed)
        self._sequences = itertools.count()
        self._inputs: PassInputs | None = None
        self._plan: PassPlan | None = None
        self._decodes = 0
        self._failed: set[str] = set()
        self.chunk_limit: int | None = None

    def note_inputs(self, inputs: PassInputs) -> None:
        """Decide with these from now on."""
        self._inputs = inputs

    def welcome(self, req: Any) -> Budget:
        """The budget of a request that enters the queue, first or again; SloError for a bad one."""
        standing = getattr(req, "bana", None)
        if standing is None:
            params = getattr(req.sampling_params, "custom_params", None)
            terms = self._terms
            words = params if isinstance(params, dict) else {}
            budget = read_budget(words, self._now_s, terms.boot_id, terms.default)
            standing = req.bana = Standing(budget, next(self._sequences))
        self.room.seat(standing, self._list_present)
        self._measure(req)
        return standing.budget

    def decide_admission(self, req: Any) -> AdmissionDecision:
        """Whether a request that has just been welcomed is taken in."""
        admitted = AdmissionDecision(Verdict.ADMITTED, "no_inputs")
        inputs = self._inputs
        if inputs is None:
            return admitted
        queue = self._scheduler.waiting_queue
        slots = list_slots((r.bana for r in (*queue, req)), len(queue) + 1)
        rows = self.room.view(slots, inputs.model, self._max_chunk_tokens)
        ahead = (rows.deadline_s[:-1] <= rows.deadline_s[-1]) & ~rows.demoted[:-1]
        view = ArrivalView(
            budget=req.bana.budget,
            service_s=float(rows.service_s[-1]),
            ahead_s=float(rows.service_s[:-1][ahead].sum()),
            inflation=inputs.load.inflation,
        )
        policy = self._policies.admission
        decided = self._ask(
            "admission", lambda: policy.decide_admission(view, inputs.now_s), admitted
        )
        self.counts.rejections += decided.verdict is not Verdict.ADMITTED
        return decided

    def plan_pass(self, running_batch: Any) -> StepKind | None:
        """Decide this pass; what the step is to be, None where that is left to SGLang."""
        self._plan = None
        chunked = self._scheduler.chunked_req
        is_shut = running_batch.batch_is_full and chunked is None
        if self._inputs is None or is_shut or not (self._scheduler.waiting_queue or chunked):
            return None
        self._plan = self._decide(running_batch, self._inputs)
        self.counts.passes += 1
        step = self._plan.step
        if step is not None and step.kind is StepKind.DECODE:
            self.counts.deferrals += 1
            self._plan = None
        return None if step is None else step.kind

    @property
    def plan(self) -> PassPlan | None:
        """What this pass is to admit; None where it is left to SGLang."""
        return self._plan

    def apply_plan(self) -> None:
        """Order the queue, and let tighter requests go beside or before the chunked one."""
        self.chunk_limit = None
        plan = self._plan
        if plan is None:
            return
        if plan.order is None:
            self._order_without_plan()
            return
        self._demote(plan, plan.order)
        ahead = list_ahead(plan, self._scheduler.chunked_req)
        if self._scheduler.chunked_req is not None and ahead:
            self._make_way(ahead, self.chunk_tokens)
        self.effects.put_first(plan.head)

    @property
    def chunk_tokens(self) -> int:
        """Prompt tokens of this pass's step."""
        step = self._plan.step if self._plan is not None else None
        return self._max_chunk_tokens if step is None else step.prefill_tokens

    def make_room(self, running_batch: Any) -> bool:
        """Nothing was admitted: whether another try may go better, since KV was freed for it.

        Half-computed prompts hold KV. The tightest of them runs when the head does not fit; when
        nothing else will ever free a page, the loosest lose theirs, one by one.
        """
        started = self.effects.list_started()
        if not started:
            return False
        queue = self._scheduler.waiting_queue
        if queue and queue[0] is not started[0]:
            self.effects.put_first(started)
        elif running_batch.is_empty() and self._scheduler.chunked_req is None:
            self.effects.give_up(started[-1])
        else:
            return False
        running_batch.batch_is_full = False
        return True

    def note_admitted(self, batch: Any) -> None:
        """These requests run now."""
        if self.chunk_limit is not None and len(batch.reqs) > 1:
            self.counts.shares += 1
        for req in batch.reqs:
            self.effects.settle(req)
        chunked = self._scheduler.chunked_req
        if chunked is not None:
            self.room.mark_started(chunked.bana.slot)
            self.room.measure(chunked.bana.slot, chunked.seqlen, chunked.extend_end)

    def note_step(self, batch: Any) -> None:
        """This batch runs next, None for no batch."""
        if batch is None:
            return
        mode = batch.forward_mode
        self._decodes = 0 if mode.is_extend() else self._decodes + 1

    def save_decodes(self, running_batch: Any) -> None:
        """Before decoding requests are retracted for want of KV, half-computed prompts give way."""
        for req in reversed(self.effects.list_started()):
            if running_batch.check_decode_mem():
                return
            self.effects.give_up(req)
        chunked = self._scheduler.chunked_req
        if chunked is not None and not running_batch.check_decode_mem():
            if self.effects.can_yield(self._terms.max_started):
                self.effects.drop_chunked()

    @property
    def _now_s(self) -> float:
        return 0.0 if self._inputs is None else self._inputs.now_s

    @property
    def _max_chunk_tokens(self) -> int:
        scheduler = self._scheduler
        return int(scheduler.chunked_prefill_size or scheduler.max_prefill_tokens)

    def _list_present(self) -> list[Standing]:
        chunked = self._scheduler.chunked_req
        rest = [] if chunked is None else [chunked.bana]
        return [req.bana for req in self._scheduler.waiting_queue] + rest

    def _measure(self, req: Any) -> None:
        """How much of the prompt the device holds now, as SGLang's own cache-aware orders see it."""
        match_kv_cache(req, self._scheduler.tree_cache)
        self.room.measure(req.bana.slot, req.seqlen, req.num_matched_prefix_tokens)

    def _decide(self, running_batch: Any, inputs: PassInputs) -> PassPlan:
        chunked = self._scheduler.chunked_req
        reqs = [*self._scheduler.waiting_queue, *([] if chunked is None else [chunked])]
        slots = list_slots((req.bana for req in reqs), len(reqs))
        order = self._decide_order(slots, inputs)
        first = reqs[order.head[0]] if order is not None else chunked or reqs[0]
        step = self._decide_step(running_batch, slots, first, inputs)
        return PassPlan(reqs, slots, order, step)

    def _decide_order(self, slots: Slots, inputs: PassInputs) -> OrderPlan | None:
        policy = self._policies.order
        if policy is None:
            return None
        queue = self.room.view(slots, inputs.model, self._max_chunk_tokens)
        view = QueueView(queue, inputs.load, self._terms.head_rows)
        return self._ask(
            "order", lambda: policy.decide_order(view, inputs.now_s, self._rng), None
        )

    def _decide_step(
        self, running_batch: Any, slots: Slots, first: Any, inputs: PassInputs
    ) -> StepPlan | None:
        policy = self._policies.governor
        if policy is None or self._scheduler.chunked_prefill_size is None:
            return None
        limits = [req.bana.budget.tpot_s for req in running_batch.reqs if not req.finished()]
        view = StepView(
            model=inputs.model,
            decode_requests=len(limits),
            context_tokens=sum(req.seqlen for req in running_batch.reqs),
            tightest_tpot_s=min(limits, default=None),
            prefill_tokens=self.room.sum_new_tokens(slots, self._scheduler.page_size),
            prefix_tokens=self.room.prefix_tokens(first.bana.slot),
            decodes_since_prefill=self._decodes,
            max_chunk_tokens=self._max_chunk_tokens,
            page_tokens=self._scheduler.page_size,
            can_mix=bool(self._scheduler.is_mixed_chunk),
        )
        return self._ask("governor", lambda: policy.decide_step(view), None)

    def _demote(self, plan: PassPlan, order: OrderPlan) -> None:
        """Set requests behind, except those whose prefix turns out to be cached by now."""
        rows = list(order.demote)
        for row in rows[:REMEASURED_ROWS]:
            slot = int(plan.slots[row])
            before = self.room.new_tokens(slot)
            if plan.reqs[row] is not self._scheduler.chunked_req:
                self._measure(plan.reqs[row])
            if self.room.new_tokens(slot) < before:
                rows.remove(row)
        self.room.demote(plan.slots[rows])
        self.counts.demotions += len(rows)

    def _make_way(self, ahead: list[Any], chunk_tokens: int) -> None:
        self.chunk_limit = self.effects.plan_share(ahead, chunk_tokens)
        if self.chunk_limit is None and self.effects.can_yield(self._terms.max_started):
            self.effects.yield_chunked()

    def _order_without_plan(self) -> None:
        if self._policies.order is not None:
            self.effects.put_by_arrival()

    def _ask(self, question: str, decide: Callable[[], T], otherwise: T) -> T:
        try:
            return decide()
        except Exception:
            self.counts.faults += 1
            if question not in self._failed:
                self._failed.add(question)
                logger.exception("bana: the %s policy failed; SGLang's own choice stands", question)
            return otherwise
