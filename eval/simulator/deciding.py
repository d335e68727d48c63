"""The policies as the instance asks them: their answers held to their law, and written down.

view ──▶ policy ──▶ plan ──▶ within its law? ──▶ carried out
                      └────▶ decision log (what `bana eval replay` decides again)
"""

from __future__ import annotations

import dataclasses
import math
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
from bana.slo.errors import PlanError
from bana.slo.governor import Governor, StepKind, StepPlan, StepView
from bana.slo.order import OrderPlan, QueueOrder, QueueView
from bana.slo.restore import RestorePlan, RestorePolicy, RestoreView
from bana.slo.restore_plan import count_expected, is_complete


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
        plan = self._policies.order.decide_order(view, now_s, self._rng)
        _check_order(plan, view)
        if self._sink is not None:
            self._sink.write(OrderRecord(number, now_s, record_queue(view), plan))
        return plan

    def decide_step(self, view: StepView) -> StepPlan:
        """What the next step does."""
        number = self._count()
        plan = self._policies.governor.decide_step(view)
        _check_step(plan, view)
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
        plan = policy.decide_restore(view, now_s, self._rng)
        _check_restore(plan, view, now_s)
        if self._sink is not None:
            self._sink.write(RestoreRecord(number, now_s, view, plan))
        return plan

    def _count(self) -> int:
        self._number += 1
        return self._number - 1


def _check_order(plan: OrderPlan, view: QueueView) -> None:
    rows = view.queue.sequence.size
    wanted = min(view.head_rows, rows)
    head = set(plan.head)
    if len(plan.head) != wanted or len(head) != wanted or len(plan.reasons) != wanted:
        raise PlanError(
            f"queue order answered {len(plan.head)} rows ({len(head)} distinct) with "
            f"{len(plan.reasons)} reasons; allowed: {wanted} of {rows} rows, a reason each; repair "
            "the policy"
        )
    if not all(0 <= row < rows for row in (*plan.head, *plan.demote)):
        raise PlanError(f"queue order names a row outside 0..{rows - 1}: {plan}; repair the policy")
    started = view.queue.started
    if any(started[row] for row in plan.demote):
        raise PlanError(f"queue order demotes a started request: {plan.demote}; repair the policy")


def _check_step(plan: StepPlan, view: StepView) -> None:
    tokens, most = plan.prefill_tokens, view.max_chunk_tokens
    if not 0 <= tokens <= most:
        raise PlanError(f"governor plans {tokens} prompt tokens, allowed: 0 to {most}; repair it")
    if plan.kind is StepKind.DECODE and not view.decode_requests:
        raise PlanError(f"governor plans {plan} where nothing decodes; repair the policy")
    if plan.kind is StepKind.MIXED and not view.can_mix:
        raise PlanError(f"governor plans {plan} on an engine that cannot mix; repair the policy")
    if plan.kind is not StepKind.DECODE and view.prefill_tokens and not tokens:
        raise PlanError(f"governor plans {plan} without a prompt token, some wait; repair it")


def _check_restore(plan: RestorePlan, view: RestoreView, now_s: float) -> None:
    most = max(view.arrived_pages, count_expected(view))
    if not view.arrived_pages <= plan.pages <= most:
        raise PlanError(
            f"restore policy waits for {plan.pages} pages, allowed: {view.arrived_pages} that are "
            f"there to {most} that may come; repair the policy"
        )
    if not math.isfinite(plan.until_s) or (is_complete(view) and plan.until_s > now_s):
        raise PlanError(
            f"restore policy waits until {plan.until_s:g} s, at {now_s:g} s, allowed: a finite "
            "time, no later than now where no more can come; repair the policy"
        )
