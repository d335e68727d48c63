"""What one pass of the scheduler's loop decides from, and what it decided."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from bana.slo.governor import StepPlan
from bana.slo.order import EngineLoad, OrderPlan
from bana.slo.steps import StepModel
from sglang_bana.engine.scheduling.waiting_room import Slots


class PassInputs(msgspec.Struct, frozen=True):
    """What rank 0 measured: the only clock, model and load that decisions of any rank use."""

    now_s: float
    model: StepModel
    load: EngineLoad


@dataclasses.dataclass(frozen=True, eq=False)
class PassPlan:
    """The decisions of one pass over `reqs`, whose row i sits in slot `slots[i]`.

    The request that is being prefilled in chunks is the last row, where there is one. A question
    that is left to SGLang has no plan.
    """

    reqs: list[Any]
    slots: Slots
    order: OrderPlan | None
    step: StepPlan | None

    @property
    def head(self) -> list[Any]:
        """The requests to run first, in order."""
        return [] if self.order is None else [self.reqs[row] for row in self.order.head]

    @property
    def lost(self) -> set[Any]:
        """Those of the head that run although they can no longer keep their deadline."""
        return set() if self.order is None else {self.reqs[row] for row in self.order.lost_rows}

    @property
    def passed_over(self) -> Any | None:
        """The first of the head, where others may go on when it finds no room."""
        row = None if self.order is None else self.order.passed_over
        return None if row is None else self.reqs[row]
