"""bana's scheduler class: SGLang's own, with the queue and the steps decided by policies.

Each override either asks the conductor or leaves the matter to SGLang; with every question left
to SGLang there is no conductor, and an instance decides exactly as SGLang does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from sglang.srt.managers.schedule_policy import AddReqResult, PrefillAdder, SchedulePolicy
from sglang.srt.managers.scheduler import _make_abort_req

from bana.slo.admission import AdmissionDecision, Verdict
from bana.slo.governor import StepKind
from bana.slo.limits import SloError
from bana.slo.steps import EnginePrices
from sglang_bana.config import InstanceSpec
from sglang_bana.engine.linker.scheduler import RestoringScheduler
from sglang_bana.engine.scheduling.building import build_conductor, open_log
from sglang_bana.engine.scheduling.conductor import Conductor
from sglang_bana.engine.scheduling.outcome_streamer import OutcomeStreamer
from sglang_bana.engine.scheduling.passes import PassInputs

# A rank that heard nothing for this long is told the time again, so that budgets start right.
REFRESH_S = 0.1


class BanaScheduler(RestoringScheduler):
    """SGLang's scheduler under latency budgets."""

    conductor: Conductor | None = None
    chunked_prefill_size: int | None
    is_mixed_chunk: bool

    def __init__(self, spec: InstanceSpec, server_args: Any, port_args: Any) -> None:
        self._spec = spec
        self._told_s = 0.0
        super().__init__(server_args, port_args)

    def init_schedule_policy(self) -> None:
        super().init_schedule_policy()
        log = open_log(self._spec)
        if self.restorer is not None:
            self.restorer.desk.log = log
        self.conductor = build_conductor(self, self._spec, log)
        if self.conductor is None:
            return
        self.policy = ConductedPolicy(
            self.schedule_policy,
            self.tree_cache,
            self.enable_hierarchical_cache,
            self.enable_priority_scheduling,
            self.schedule_low_priority_values_first,
        )
        self.policy.conductor = self.conductor

    def _poll_timeout_aborts(self) -> list[Any]:
        """Rank 0 alone: its clock and model ride to all ranks with what they receive."""
        told = super()._poll_timeout_aborts()
        if self.conductor is not None and self.tp_size > 1:
            now_s = time.monotonic()
            if self._has_work() or now_s - self._told_s > REFRESH_S:
                self._told_s = now_s
                told.append(self.conductor.learner.inputs(now_s))
        return told

    def process_input_requests(self, recv_reqs: list[Any]) -> None:
        if self.conductor is not None:
            if self.tp_size == 1:
                self.conductor.note_inputs(self.conductor.learner.inputs(time.monotonic()))
            for inputs in recv_reqs:
                if isinstance(inputs, PassInputs):
                    self.conductor.note_inputs(inputs)
            recv_reqs = [req for req in recv_reqs if not isinstance(req, PassInputs)]
        super().process_input_requests(recv_reqs)
        if self.conductor is not None:
            for req in self.grammar_manager.grammar_queue:
                self.conductor.note_arrival(req)

    def _add_request_to_queue(
        self,
        req: Any,
        is_retracted: bool = False,  # noqa: FBT001, FBT002 - SGLang's signature
    ) -> None:
        if self.conductor is None or self._take_in(req):
            super()._add_request_to_queue(req, is_retracted)

    def _take_in(self, req: Any) -> bool:
        """Whether the request may wait; the client of one that may not is told why."""
        assert self.conductor is not None
        is_new = not hasattr(req, "bana")
        self.conductor.counts.retractions += not is_new
        try:
            self.conductor.welcome(req)
        except SloError as error:
            self._refuse(req, HTTPStatus.BAD_REQUEST, str(error))
            return False
        if not is_new:
            return True
        decided = self.conductor.decide_admission(req)
        if decided.verdict is Verdict.ADMITTED:
            return True
        self._refuse(req, HTTPStatus.TOO_MANY_REQUESTS, describe_refusal(decided))
        return False

    def _refuse(self, req: Any, status: HTTPStatus, message: str) -> None:
        if self.restorer is not None:
            self.restorer.decline(req)
        reason = {"type": "abort", "status_code": status, "message": message}
        self.send_abort_output(_make_abort_req(req, finished_reason=reason), req)
        self._release_aborted_request(req)

    def _release_aborted_request(self, req: Any) -> None:
        super()._release_aborted_request(req)
        if self.conductor is not None:
            self.conductor.forget(req)

    def get_next_batch_to_run(self, running_batch: Any, last_batch: Any) -> Any:
        planned = super().get_next_batch_to_run(running_batch, last_batch)
        if self.conductor is not None:
            if planned.batch_to_run is None:
                self.conductor.learner.note_pause()
            else:
                self.conductor.stepper.note_step(planned.batch_to_run)
        return planned

    @property
    def engine_prices(self) -> EnginePrices | None:
        return None if self.conductor is None else self.conductor.engine_prices

    @property
    def can_meet(self) -> bool:
        # A meeting is at a page; chunks that kernels want longer cannot end at any.
        return (
            self.conductor is not None
            and self.conductor.stepper.governs
            and self.conductor.stepper.grid_tokens == self.page_size
        )

    def _note_ready(self, req: Any) -> None:
        if self.conductor is not None:
            self.conductor.remeasure(req)

    def _wait_again(self, req: Any) -> None:
        if self.conductor is not None:
            self.conductor.welcome(req)
        super()._wait_again(req)

    def _should_defer_prefill(self, running_batch: Any) -> bool:
        if self.conductor is None:
            return bool(super()._should_defer_prefill(running_batch))
        self._take_in_compiled()
        kind = self.conductor.plan_pass(running_batch)
        if kind is None:
            return bool(super()._should_defer_prefill(running_batch))
        return kind is StepKind.DECODE

    def _take_in_compiled(self) -> None:
        """Whose grammar has just been compiled waits like all others when the pass is planned."""
        if self.grammar_manager.has_waiting_grammars():
            for req in self.grammar_manager.get_ready_grammar_requests():
                self._add_request_to_queue(req)

    def _get_new_batch_prefill_raw(
        self, prefill_delayer_single_pass: Any, running_batch: Any
    ) -> tuple[Any, Any]:
        conductor, delayer = self.conductor, prefill_delayer_single_pass
        if conductor is None:
            return super()._get_new_batch_prefill_raw(delayer, running_batch)
        conductor.apply_plan()
        batch, running_batch = self._admit(delayer, running_batch)
        while batch is None and conductor.plan is not None and conductor.make_room(running_batch):
            batch, running_batch = self._admit(delayer, running_batch)
        if batch is not None:
            conductor.note_admitted(batch)
        return batch, running_batch

    def _admit(self, delayer: Any, running_batch: Any) -> tuple[Any, Any]:
        """SGLang's own admission, with this pass's chunk and kind of step."""
        assert self.conductor is not None
        plan = self.conductor.plan
        step = None if plan is None else plan.step
        kept = self.chunked_prefill_size, self.is_mixed_chunk
        grammars = self.grammar_manager
        # Asked before the plan; SGLang would ask again, and wait again, in each try.
        uncompiled, grammars.grammar_queue = grammars.grammar_queue, []
        if step is not None:
            self.is_mixed_chunk = step.kind is StepKind.MIXED
            decoding = len(running_batch.reqs) if self.is_mixed_chunk else 0
            self.chunked_prefill_size = step.prefill_tokens + decoding
        try:
            return super()._get_new_batch_prefill_raw(delayer, running_batch)
        finally:
            self.chunked_prefill_size, self.is_mixed_chunk = kept
            grammars.grammar_queue = uncompiled

    def get_prefill_adder_class(self) -> Callable[..., PrefillAdder]:
        if self.conductor is None:
            chosen: type[PrefillAdder] = super().get_prefill_adder_class()
            return chosen
        return partial(OneChunkAdder, self.conductor.stepper.grid_tokens)

    def get_output_streamer_class(self) -> Any:
        reports = self.conductor is not None and self._spec.scheduling.report_outcome
        return OutcomeStreamer if reports else super().get_output_streamer_class()

    def update_running_batch(self, batch: Any) -> Any:
        # Where answers end in the step under way, SGLang waits for their KV.
        ends = self.conductor is None or self._reqs_finishing_inflight(batch)
        if self.conductor is not None and not ends and not batch.check_decode_mem():
            self.conductor.save_decodes(batch)
        return super().update_running_batch(batch)

    def flush_cache(
        self,
        empty_cache: bool = True,  # noqa: FBT001, FBT002 - SGLang's signature
    ) -> bool:
        # A flush that SGLang denies takes nothing.
        if self.conductor is not None and self.is_fully_idle(ignore_waiting=self._engine_paused):
            self.conductor.effects.give_up_all()
        return bool(super().flush_cache(empty_cache))

    def run_batch(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if self.conductor is None:
            return super().run_batch(batch, *args, **kwargs)
        with self.conductor.learner.timing(batch):
            return super().run_batch(batch, *args, **kwargs)

    def process_batch_result(self, batch: Any, result: Any) -> None:
        super().process_batch_result(batch, result)
        if self.conductor is not None:
            self.conductor.learner.note_result()
            self.conductor.outcomes.note_tokens(batch.reqs, time.monotonic())

    def on_idle(self) -> None:
        if self.conductor is not None:
            self.conductor.learner.note_idle()
        super().on_idle()

    def _has_work(self) -> bool:
        return bool(self.waiting_queue or self.chunked_req or not self.running_batch.is_empty())


class ConductedPolicy(SchedulePolicy):
    """SGLang's place for an order of the queue, where the order was decided before."""

    conductor: Conductor

    def calc_priority(self, waiting_queue: list[Any], *args: Any, **kwargs: Any) -> None:
        if self.conductor.plan is None or self.conductor.plan.order is None:
            super().calc_priority(waiting_queue, *args, **kwargs)
        else:
            # As SGLang does after its own order: what the first of the queue will use stays cached.
            self._touch_waiting_prefixes(self.policy, waiting_queue)

    def shortest_prefill_chunk_limit(
        self, chunked_req: Any, waiting_queue: list[Any], budget: int, page_size: int
    ) -> int | None:
        return self.conductor.chunk_limit


class OneChunkAdder(PrefillAdder):
    """Admits beside a chunked request only what fits whole: SGLang can track one chunked prompt.

    SGLang computes the next chunk whatever KV is left: with prompts first, nothing can have taken
    it meanwhile. Here others ran in between, so a chunk takes what there is, in multiples of
    `grid_tokens`; where that is nothing, nobody is admitted and decodes go on.
    """

    chunked_req_limit: int | None
    _is_parked = _is_chunking = False

    def __init__(self, grid_tokens: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._grid_tokens = grid_tokens

    def add_chunked_req(self, req: Any) -> Any:
        room_tokens = int(self.memory_budget.remaining_current) // self.page_size * self.page_size
        if room_tokens < len(req.full_untruncated_fill_ids) - req.prefix_len:
            room_tokens = room_tokens // self._grid_tokens * self._grid_tokens
        left = req
        if room_tokens > 0:
            limit = self.chunked_req_limit
            self.chunked_req_limit = room_tokens if limit is None else min(limit, room_tokens)
            left = super().add_chunked_req(req)
        self._is_parked = not self.can_run_list
        self._is_chunking = left is not None
        return left

    def add_one_req_ignore_eos(self, req: Any) -> Any:
        """Without a prefix cache: SGLang looks here at no chunked request, since in its own chunks
        that one uses up the step.
        """
        left_tokens = len(req.full_untruncated_fill_ids) - req.prefix_len
        room_tokens = self.rem_chunk_tokens
        if self._is_chunking and room_tokens is not None and left_tokens > room_tokens:
            return AddReqResult.OTHER
        return super().add_one_req_ignore_eos(req)

    def budget_state(self) -> Any:
        return AddReqResult.OTHER if self._is_parked else super().budget_state()

    def _select_prefill_admission(self, req: Any, **kwargs: Any) -> Any:
        admission = super()._select_prefill_admission(req, **kwargs)
        is_second = kwargs.get("has_chunked_req", False) and getattr(admission, "is_chunked", False)
        return AddReqResult.OTHER if is_second else admission


def describe_refusal(decided: AdmissionDecision) -> str:
    """What a client reads that was not taken in; the front door reads the seconds out of it."""
    wait_s = decided.retry_after_s or 1.0
    return (
        f"{decided.verdict}: the request cannot meet its latency limits now ({decided.reason}); "
        f"retry after {wait_s:.3f} s, or ask for wider limits"
    )
