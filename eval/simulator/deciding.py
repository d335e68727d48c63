"""The policies as the instance asks them: their answers held to their law, and written down.

view ──▶ policy ──▶ plan ──▶ within its law? ──▶ carried out
                      └────▶ decision log (what `bana eval replay` decides again)
"""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Protocol

from bana.slo.admission import Admission, AdmissionDecision, ArrivalView, Verdict
from bana.slo.decisions import (
    AdmissionRecord,
    Decision,
    GovernorRecord,
    OrderRecord,
    RestoreRecord,
    record_queue,
    seed_decision,
)
from bana.slo.governor import Governor, StepPlan, StepView
from bana.slo.laws import require_order, require_restore, require_step
from bana.slo.order import OrderPlan, QueueOrder, QueueView
from bana.slo.restore import RestorePlan, RestorePolicy, RestoreView


@dataclasses.dataclass(frozen=True)
class Policies:
    """Who answers which question; without an admission policy everybody is taken in, without a
    restore policy there is no store.
    """

    order: QueueOrder
    governor: Governor
    admission: Admission | None = None
    restore: RestorePolicy | None = None


class DecisionSink(Protocol):
    """Takes decisions in their order."""

    def write(self, decision: Decision) -> None: ...


class Decider:
    """Asks the policies; PlanError where an answer is outside its law."""

    def __init__(self, policies: Policies, seed: int, sink: DecisionSink | None = None) -> None:
        self._policies = policies
        self._seed = seed
        self._sink = sink
        self._rng = Random(seed)
        self._number = 0

    @property
    def does_admit_all(self) -> bool:
        """Whether nobody is ever refused."""
        return self._policies.admission is None

    @property
    def does_fetch(self) -> bool:
        """Whether the store is asked at all."""
        return self._policies.restore is not None and self._policies.restore.asks

    def decide_order(self, view: QueueView, now_s: float) -> OrderPlan:
        """Which rows run first."""
        number = self._count()
        seed_decision(self._rng, self._seed, number)
        plan = require_order(self._policies.order.decide_order(view, now_s, self._rng), view)
        if self._sink is not None:
            self._sink.write(OrderRecord(number, now_s, record_queue(view), plan))
        return plan

    def decide_step(self, view: StepView) -> StepPlan:
        """What the next step does."""
        number = self._count()
        plan = require_step(self._policies.governor.decide_step(view), view)
        if self._sink is not None:
            self._sink.write(GovernorRecord(number, view, plan))
        return plan

    def decide_admission(self, view: ArrivalView, now_s: float) -> AdmissionDecision:
        """Whether a request is taken in."""
        number = self._count()
        if self._policies.admission is None:
            return AdmissionDecision(Verdict.ADMITTED, "all")
        plan = self._policies.admission.decide_admission(view, now_s)
        if self._sink is not None:
            self._sink.write(AdmissionRecord(number, now_s, view, plan))
        return plan

    def decide_restore(self, view: RestoreView, now_s: float) -> RestorePlan:
        """How long a request waits for its pages, and for how many."""
        policy = self._policies.restore
        assert policy is not None, "nothing is held without a restore policy"
        number = self._count()
        seed_decision(self._rng, self._seed, number)
        plan = require_restore(policy.decide_restore(view, now_s, self._rng), view, now_s)
        if self._sink is not None:
            self._sink.write(RestoreRecord(number, now_s, view, plan))
        return plan

    def _count(self) -> int:
        self._number += 1
        return self._number - 1
