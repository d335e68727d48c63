"""Decides each pass of one scheduler: a view, a plan, and its effects.

inputs (rank 0's clock and model) ─▶ order ─▶ step ─▶ decode, or: share or yield ─▶ admission
"""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
from sglang.srt.mem_cache.common import match_kv_cache

from bana.slo.admission import AdmissionDecision, Verdict
from bana.slo.budget import read_budget
from bana.slo.governor import StepKind
from bana.slo.limits import Slo
from bana.slo.order import QueueView
from bana.slo.steps import EnginePrices
from sglang_bana.engine.scheduling.counts import PassCounts
from sglang_bana.engine.scheduling.effects import Effects, list_ahead
from sglang_bana.engine.scheduling.outcomes import Outcomes, is_own
from sglang_bana.engine.scheduling.panel import Panel
from sglang_bana.engine.scheduling.passes import PassInputs, PassPlan, view_arrival
from sglang_bana.engine.scheduling.step_learner import StepLearner
from sglang_bana.engine.scheduling.stepping import Stepper, find_meet_tokens
from sglang_bana.engine.scheduling.waiting_room import Standing, WaitingRoom
from sglang_bana.engine.stay import stay_of

# Matching a prompt against the tree costs up to a tenth of a millisecond.
REMEASURED_ROWS = 4
# A lost request that finds no room lets others go first so often; then it holds them up until it
# does, lest those who came later take every page that is freed.
MOST_PASSED_OVER = 1000


class Terms(msgspec.Struct, frozen=True):
    """What decisions of this engine are bound by."""

    default: Slo
    boot_id: str
    head_rows: int
    max_started: int


class Conductor:
    """Decides for one scheduler; its thread alone calls it. Every rank decides the same.

    `plan` is what this pass is to admit, None where that is left to SGLang; `chunk_limit` what the
    chunked request may take of it, None for all.
    """

    def __init__(self, scheduler: Any, panel: Panel, terms: Terms, counts: PassCounts) -> None:
        self.counts = counts
        self.room = WaitingRoom()
        self.effects = Effects(scheduler, self.room, counts)
        self.outcomes = Outcomes()
        self.plan: PassPlan | None = None
        self.chunk_limit: int | None = None
        self.learner = StepLearner(scheduler)
        self.stepper = Stepper(scheduler, panel, self.room)
        self._scheduler = scheduler
        self._panel = panel
        self._terms = terms
        self._sequences = itertools.count()
        self._inputs: PassInputs | None = None
        # Who was passed over last, and how often in a row.
        self._passed: Any = None
        self._times_passed = 0
        # For whom way is made in this pass, and for whom it was made in vain in the one before.
        self._leader: Any = None
        self._stuck: Any = None
        # Whose first token is being computed.
        self._beginning: dict[Any, None] = {}

    def note_inputs(self, inputs: PassInputs) -> None:
        """Decide with these from now on; first tokens that are out came by now."""
        self._inputs = inputs
        for req in [req for req in self._beginning if req.output_ids or req.finished()]:
            del self._beginning[req]
            req.bana.begun_s = inputs.now_s

    def forget(self, req: Any) -> None:
        """The request has left without an answer."""
        self.effects.forget(req)
        self._beginning.pop(req, None)

    def welcome(self, req: Any) -> None:
        """Give a request that enters the queue its budget and a place; SloError for a bad one."""
        if not hasattr(req, "bana"):
            params = getattr(req.sampling_params, "custom_params", None)
            words = params if isinstance(params, dict) else {}
            budget = read_budget(words, self._stamp(req), self._terms.boot_id, self._terms.default)
            req.bana = Standing(budget, next(self._sequences))
        self.room.seat(req, self.outcomes.number(req.bana.budget.slo_class), self._list_seated)
        self._measure(req)
        if req.output_ids:
            # It was retracted: its first token is out, so no deadline can give it up.
            self.room.mark_started(req.bana.slot)

    def note_arrival(self, req: Any) -> None:
        """The request is here, and enters the queue later: its promise counts from now."""
        self._stamp(req)

    def decide_admission(self, req: Any) -> AdmissionDecision:
        """Whether a request that has just been welcomed is taken in."""
        inputs = self._inputs
        if inputs is None:
            return AdmissionDecision(Verdict.ADMITTED, "no_inputs")
        if not self._panel.judges:
            return AdmissionDecision(Verdict.ADMITTED, "accept")
        # Of those whose pages are on their way, little is left to be computed here.
        before = [other for other in self._list_present() if not self._scheduler.is_held(other)]
        slots = self.room.find([*before, req])
        rows = self.room.view(slots, inputs.model, self.stepper.max_chunk_tokens)
        view = view_arrival(req, rows, inputs.load.inflation)
        decided = self._panel.decide_admission(view, inputs.now_s)
        if decided.verdict is not Verdict.ADMITTED:
            self.counts.rejections += 1
            self.outcomes.book(req.bana.budget.slo_class).rejected += 1
        return decided

    def remeasure(self, req: Any) -> None:
        """More of a waiting prompt may be at hand than when the request came."""
        self._measure(req)

    @property
    def engine_prices(self) -> EnginePrices | None:
        """What computing costs here now, None before any measurement; any thread may ask."""
        inputs = self._inputs
        if inputs is None:
            return None
        return EnginePrices(inputs.model, self.stepper.max_chunk_tokens, inputs.load.inflation)

    def plan_pass(self, running_batch: Any) -> StepKind | None:
        """Decide this pass; what its step is to be, None where that is left to SGLang."""
        self.plan = self.chunk_limit = self._leader = None
        works = self._scheduler.waiting_queue or self._scheduler.chunked_req
        if self._inputs is None or not works or self._is_shut(running_batch):
            return None
        self.counts.passes += 1
        plan = self._decide(running_batch, self._inputs)
        if plan.step is not None and plan.step.kind is StepKind.DECODE:
            self.counts.deferrals += 1
            return StepKind.DECODE
        self.plan = plan
        return None if plan.step is None else plan.step.kind

    def apply_plan(self) -> None:
        """Order the queue, and let tighter requests go beside or before the chunked one."""
        self._look_for_meeting()
        plan, chunked = self.plan, self._scheduler.chunked_req
        if plan is None or not self._panel.orders:
            return
        if plan.order is None:
            self.effects.put_by_arrival()
            return
        self._demote(plan)
        ahead = list_ahead(plan, chunked)
        if chunked is not None and ahead:
            self._make_way(ahead, plan)
        self.effects.put_head_first(plan)

    def make_room(self, running_batch: Any) -> bool:
        """Nothing was admitted: whether another try may go better.

        A fresh request that leads although it is lost holds nobody up. Half-computed prompts hold
        KV: the tightest of them runs when the head does not fit; when nothing else will ever free
        a page, the loosest lose theirs, one by one.
        """
        if self._pass_over(running_batch):
            return True
        started = self.effects.list_started()
        if not started or not self._scheduler.waiting_queue:
            return False
        seen = [req for req in started if not self._scheduler.is_held(req)]
        if seen and self._scheduler.waiting_queue[0] is not seen[0]:
            self.effects.put_first(seen)
        elif running_batch.is_empty():
            self.effects.give_up(started[-1])
        else:
            return False
        running_batch.batch_is_full = False
        return True

    def note_admitted(self, batch: Any) -> None:
        """These requests run now."""
        chunked = self._scheduler.chunked_req
        self._note_way(batch)
        self._note_portions(batch)
        for req in batch.reqs:
            self._note_admission(req)
            self.effects.settle(req)
            if req.bana.begun_s is None:
                self._beginning[req] = None
        if chunked is not None:
            self.room.mark_started(chunked.bana.slot)
            self.room.measure(chunked.bana.slot, chunked.seqlen, chunked.extend_end)

    def save_decodes(self, running_batch: Any) -> None:
        """Before decoding requests are retracted for want of KV, half-computed prompts give way."""
        chunked = self._scheduler.chunked_req
        started = self.effects.list_started()
        if not started and chunked is None:
            return
        while not running_batch.check_decode_mem():
            if started:
                self.effects.give_up(started.pop())
            elif chunked is not None and self.effects.can_separate(chunked):
                self.effects.drop_chunked()
                return
            else:
                return

    def _look_for_meeting(self) -> None:
        """The chunked request looks again once it has computed up to what is fetched for it."""
        chunked = self._scheduler.chunked_req
        if chunked is None or not 0 < find_meet_tokens(chunked) <= chunked.prefix_len:
            return
        if not self.effects.can_separate(chunked):
            self._scheduler.stay_parted(chunked)
            return
        self.effects.yield_chunked()
        self._scheduler.note_met(chunked)

    def _is_shut(self, running_batch: Any) -> bool:
        """Whether SGLang admits nobody now; to it no empty batch is full, nor any with windows."""
        scheduler = self._scheduler
        is_tried = running_batch.is_empty() or scheduler.is_hybrid_swa or scheduler.chunked_req
        return bool(running_batch.batch_is_full and not is_tried)

    def _pass_over(self, running_batch: Any) -> bool:
        """Whether a lost request that leads gave way to those behind it; once a pass."""
        leader = None if self.plan is None else self.plan.passed_over
        queue = self._scheduler.waiting_queue
        if leader is None or leader.bana.lock or len(queue) < 2 or queue[0] is not leader:
            return False
        self._times_passed = self._times_passed + 1 if leader is self._passed else 1
        self._passed = leader
        if self._times_passed > MOST_PASSED_OVER:
            return False
        self.effects.put_last(leader)
        running_batch.batch_is_full = False
        return True

    def _list_present(self) -> list[Any]:
        """Whose prompts are still to be computed: the queue, then the chunked request."""
        chunked = self._scheduler.chunked_req
        return [*self._scheduler.waiting_queue, *([] if chunked is None else [chunked])]

    def _list_seated(self) -> list[Any]:
        """These, and whom this pass does not see because their pages are on their way."""
        return [*self._list_present(), *self._scheduler.held_out]

    def _stamp(self, req: Any) -> float:
        """When the request came, by the clock of all ranks."""
        stay = stay_of(req)
        if stay.arrived_s is None:
            stay.arrived_s = 0.0 if self._inputs is None else self._inputs.now_s
        return stay.arrived_s

    def _measure(self, req: Any) -> None:
        """See how much of the prompt is cached now, as SGLang's own cache-aware orders do."""
        match_kv_cache(req, self._scheduler.tree_cache)
        self.room.measure(req.bana.slot, req.seqlen, req.num_matched_prefix_tokens)

    def _decide(self, running_batch: Any, inputs: PassInputs) -> PassPlan:
        reqs = self._list_present()
        slots = self.room.find(reqs)
        queue = self.room.view(slots, inputs.model, self.stepper.max_chunk_tokens)
        view = QueueView(queue, inputs.load, self._terms.head_rows)
        order = self._panel.decide_order(view, inputs.now_s)
        first = reqs[order.head[0]] if order is not None else self._scheduler.chunked_req or reqs[0]
        return PassPlan(
            slots=slots,
            order=order,
            step=self.stepper.decide_step(
                running_batch, slots, first, queue.tightest_ttft_s, inputs
            ),
            head=[] if order is None else [reqs[row] for row in order.head],
            doubtful=[] if order is None else [reqs[row] for row in order.demote[:REMEASURED_ROWS]],
        )

    def _demote(self, plan: PassPlan) -> None:
        """Set requests behind, except those whose prefix turns out to be cached by now."""
        rows = [] if plan.order is None else list(plan.order.demote)
        for row, req in zip(rows[:REMEASURED_ROWS], plan.doubtful, strict=True):
            slot = int(plan.slots[row])
            before = self.room.new_tokens(slot)
            if req is not self._scheduler.chunked_req:
                self._measure(req)
            if self.room.new_tokens(slot) < before:
                rows.remove(row)
        slots = plan.slots[rows]
        self.room.demote(slots)
        self.counts.demotions += len(rows)
        self.outcomes.note_demoted(self.room.books(slots))

    def _make_way(self, ahead: list[Any], plan: PassPlan) -> None:
        """Share the chunk with those `ahead`, or let them pass; not for one who has just found no
        room, lest the chunked request crawl for nothing.
        """
        stuck, self._stuck = self._stuck, None
        if ahead[0] is stuck:
            return
        self._leader = ahead[0]
        chunked = self._scheduler.chunked_req
        chunk_tokens = (
            self.stepper.max_chunk_tokens if plan.step is None else plan.step.prefill_tokens
        )
        grid_tokens = self.stepper.grid_tokens
        self.chunk_limit = self.effects.plan_share(ahead, chunk_tokens, grid_tokens)
        is_room = self.effects.count_started() < self._terms.max_started
        if self.chunk_limit is None and is_room and self.effects.can_separate(chunked):
            self.effects.yield_chunked()
            self.outcomes.book(chunked.bana.budget.slo_class).yielded += 1

    def _note_way(self, batch: Any) -> None:
        """Whether the one for whom way was made is in; if not, its prefix may have been evicted."""
        leader, self._leader = self._leader, None
        if leader in batch.reqs:
            self.counts.shares += self.chunk_limit is not None
        elif leader is not None:
            before = self.room.new_tokens(leader.bana.slot)
            self._measure(leader)
            is_as_thought = self.room.new_tokens(leader.bana.slot) == before
            self._stuck = leader if is_as_thought else None

    def _note_admission(self, req: Any) -> None:
        standing, inputs = req.bana, self._inputs
        if inputs is None or standing.is_admitted or is_own(req):
            return
        standing.is_admitted = True
        new, prefix = self.room.new_tokens(standing.slot), self.room.prefix_tokens(standing.slot)
        service_s = inputs.model.estimate_prefill_s(new, prefix, self.stepper.max_chunk_tokens)
        slack_s = standing.budget.slack_s(inputs.now_s, service_s)
        self.outcomes.book(standing.budget.slo_class).slack.add(slack_s)

    def _note_portions(self, batch: Any) -> None:
        """Whose prompts this step computes; what it runs of lost requests uses up their share."""
        lost = set() if self.plan is None else self.plan.lost
        prompts = len(batch.reqs) - len(batch.decoding_reqs or ())
        for req, tokens in zip(batch.reqs[:prompts], batch.extend_lens[:prompts], strict=True):
            if not is_own(req):
                self.learner.note_portion(tokens, tokens if req in lost else 0)
