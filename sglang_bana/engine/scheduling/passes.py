"""What one pass of the scheduler's loop decides from, and what it decided."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from bana.slo.admission import ArrivalView
from bana.slo.governor import StepPlan
from bana.slo.handoff import Handoff, read_handoff
from bana.slo.order import EngineLoad, OrderPlan, QueueColumns
from bana.slo.steps import StepModel
from sglang_bana.engine.scheduling.waiting_room import Slots


class PassInputs(msgspec.Struct, frozen=True):
    """What rank 0 measured: the only clock, model and load that decisions of any rank use."""

    now_s: float
    model: StepModel
    load: EngineLoad


def view_arrival(req: Any, rows: QueueColumns, inflation: float) -> ArrivalView:
    """A request in the last of these rows, behind the others that are due before it. A prompt that
    another engine computes for this one takes nothing of it.
    """
    ahead = (rows.deadline_s[:-1] <= rows.deadline_s[-1]) & ~rows.demoted[:-1]
    part = read_handoff(getattr(req.sampling_params, "custom_params", None))
    return ArrivalView(
        budget=req.bana.budget,
        service_s=0.0 if part is Handoff.DECODE else float(rows.service_s[-1]),
        ahead_s=float(rows.service_s[:-1][ahead].sum()),
        inflation=inflation,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class PassPlan:
    """The decisions of one pass, whose row i sits in slot `slots[i]`.

    Rows are places of the queue at that time; the request that is being prefilled in chunks is the
    last one, where there is one. `head` are the requests to run first, in order, `doubtful` the
    first of those to be demoted. A question that is left to SGLang has no plan.
    """

    slots: Slots
    order: OrderPlan | None
    step: StepPlan | None
    head: list[Any]
    doubtful: list[Any]

    @property
    def lost(self) -> set[Any]:
        """Those of the head that run although they can no longer keep their deadline."""
        if self.order is None:
            return set()
        rows = self.order.lost_rows
        pairs = zip(self.order.head, self.head, strict=True)
        return {req for row, req in pairs if row in rows}

    @property
    def passed_over(self) -> Any | None:
        """The first of the head, where others may go on when it finds no room."""
        is_passed = self.order is not None and self.order.passed_over is not None
        return self.head[0] if is_passed else None
