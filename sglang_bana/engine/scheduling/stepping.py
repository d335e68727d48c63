"""Asks the governor what the next step does: a view of the engine, and the plan within its bounds.

running batch, queue, model ─▶ view ─▶ governor ─▶ plan ─▶ cut where fetched pages are to be met
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from bana.slo.governor import StepPlan, StepView
from bana.slo.pace import Pace, find_spare_s
from bana.slo.steps import StepShape
from sglang_bana.engine.scheduling.panel import Panel
from sglang_bana.engine.scheduling.passes import PassInputs
from sglang_bana.engine.scheduling.waiting_room import Slots, WaitingRoom
from sglang_bana.engine.stay import stay_of


class Stepper:
    """Plans the steps of one scheduler. Its chunk is read once: a pass lends SGLang another one,
    while other threads may ask.
    """

    def __init__(self, scheduler: Any, panel: Panel, room: WaitingRoom) -> None:
        self._scheduler = scheduler
        self._panel = panel
        self._room = room
        self._decodes = 0
        chunk_tokens = scheduler.chunked_prefill_size
        self.governs = panel.governs and chunk_tokens is not None
        self.max_chunk_tokens = int(chunk_tokens or scheduler.max_prefill_tokens)

    @property
    def grid_tokens(self) -> int:
        """What a chunk is a multiple of, unless it ends its prompt: pages, and where kernels want
        more, that; SGLang would cut a smaller one down to nothing.
        """
        scheduler = self._scheduler
        return math.lcm(scheduler.page_size, scheduler.truncation_align_size or 1)

    def note_step(self, batch: Any) -> None:
        """This batch runs next."""
        is_prompts = batch.forward_mode.is_extend()
        # A mixed step is both.
        self._decodes = (1 if batch.decoding_reqs else 0) if is_prompts else self._decodes + 1

    def decide_step(
        self,
        running_batch: Any,
        slots: Slots,
        first: Any,
        tightest_ttft_s: float | None,
        inputs: PassInputs,
    ) -> StepPlan | None:
        """The plan for those in `slots`, of whom `first` is the next; None where SGLang decides."""
        if not self.governs:
            return None
        scheduler, room = self._scheduler, self._room
        decoding = self._list_decoding(running_batch)
        context_tokens = sum(req.seqlen for req in decoding)
        decodes = StepShape(decode_requests=len(decoding), context_tokens=context_tokens)
        decode_s = inputs.model.estimate_step_s(decodes)
        paces = (_pace(req, inputs.now_s) for req in decoding)
        view = StepView(
            model=inputs.model,
            decode_requests=len(decoding),
            context_tokens=context_tokens,
            spare_s=find_spare_s(paces, inputs.now_s, decode_s),
            tightest_tpot_s=min((req.bana.budget.tpot_s for req in decoding), default=None),
            prefill_tokens=room.sum_new_tokens(slots, scheduler.page_size),
            prefix_tokens=room.prefix_tokens(first.bana.slot),
            decodes_since_prefill=self._decodes,
            max_chunk_tokens=self.max_chunk_tokens,
            page_tokens=self.grid_tokens,
            can_mix=bool(scheduler.is_mixed_chunk),
            tightest_ttft_s=tightest_ttft_s,
        )
        return self._stop_at_meeting(self._panel.decide_step(view), first)

    def _list_decoding(self, running_batch: Any) -> list[Any]:
        """Whose next token a long step would delay. One whose last token is being computed gets it
        in time from a device; where launches compute, it is read only after the next one.
        """
        scheduler = self._scheduler
        is_late = scheduler.device == "cpu"
        last = () if is_late else scheduler._reqs_finishing_inflight(running_batch)
        ending = {req.rid for req in last}
        return [req for req in running_batch.reqs if not req.finished() and req.rid not in ending]

    def _stop_at_meeting(self, plan: StepPlan | None, first: Any) -> StepPlan | None:
        """Of a prompt whose end is being fetched, compute no more than what comes before that."""
        left = find_meet_tokens(first) - self._room.prefix_tokens(first.bana.slot)
        if plan is None or not 0 < left < plan.prefill_tokens:
            return plan
        return msgspec.structs.replace(plan, prefill_tokens=left)


def find_meet_tokens(req: Any) -> int:
    """Up to which token a prompt is to be computed before it looks what was fetched; 0 for none."""
    return stay_of(req).meet_tokens


def _pace(req: Any, now_s: float) -> Pace:
    """A running request's progress; a first token that is not out yet comes now."""
    begun_s, out_tokens = req.bana.begun_s, len(req.output_ids)
    return Pace(
        begun_s=now_s if begun_s is None else begun_s,
        tpot_s=req.bana.budget.tpot_s,
        out_tokens=max(out_tokens, 1),
        left_tokens=max(req.sampling_params.max_new_tokens - out_tokens, 1),
    )
