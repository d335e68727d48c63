"""The policies of one engine: asked, recorded, and excused when they fail."""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from typing import TypeVar

from bana.slo.admission import Accept, AdmissionDecision, ArrivalView, Verdict
from bana.slo.decisions import (
    AdmissionRecord,
    GovernorRecord,
    OrderRecord,
    record_queue,
    seed_decision,
)
from bana.slo.governor import StepPlan, StepView
from bana.slo.laws import require_order, require_step
from bana.slo.order import OrderPlan, QueueView
from sglang_bana.engine.scheduling.counts import PassCounts
from sglang_bana.engine.scheduling.decision_log import DecisionLog
from sglang_bana.policies import Policies

T = TypeVar("T")
logger = logging.getLogger(__name__)


class Panel:
    """Asks policies; one that fails, or answers outside its law, is counted and reported once, and
    SGLang's choice stands.

    Decisions are numbered, and random numbers seeded by the number, so that each can be decided
    again from its line in the log alone.
    """

    def __init__(
        self, policies: Policies, seed: int, counts: PassCounts, log: DecisionLog | None
    ) -> None:
        self._policies = policies
        self._seed = seed
        self._counts = counts
        self._log = log
        self._rng = Random()
        self._number = 0
        self._failed: set[str] = set()

    def decide_order(self, view: QueueView, now_s: float) -> OrderPlan | None:
        """The order's plan; None where SGLang decides, or has to."""
        policy = self._policies.order
        if policy is None:
            return None
        plan = self._ask(
            "order", lambda: require_order(policy.decide_order(view, now_s, self._rng), view)
        )
        if plan is not None and self._log is not None:
            self._log.write(OrderRecord(self._number, now_s, record_queue(view), plan))
        return plan

    def decide_step(self, view: StepView) -> StepPlan | None:
        """The governor's plan; None where SGLang decides, or has to."""
        policy = self._policies.governor
        if policy is None:
            return None
        plan = self._ask("governor", lambda: require_step(policy.decide_step(view), view))
        if plan is not None and self._log is not None:
            self._log.write(GovernorRecord(self._number, view, plan))
        return plan

    def decide_admission(self, view: ArrivalView, now_s: float) -> AdmissionDecision:
        """The verdict on an arrival; a policy that fails refuses nobody."""
        policy = self._policies.admission
        plan = self._ask("admission", lambda: policy.decide_admission(view, now_s))
        if plan is None:
            return AdmissionDecision(Verdict.ADMITTED, "fault")
        if self._log is not None:
            self._log.write(AdmissionRecord(self._number, now_s, view, plan))
        return plan

    @property
    def orders(self) -> bool:
        """Whether a policy orders the queue."""
        return self._policies.order is not None

    @property
    def judges(self) -> bool:
        """Whether an arrival is looked at; who takes in everybody and keeps no log need not be."""
        return self._log is not None or not isinstance(self._policies.admission, Accept)

    @property
    def governs(self) -> bool:
        """Whether a policy sizes the steps."""
        return self._policies.governor is not None

    def _ask(self, question: str, decide: Callable[[], T]) -> T | None:
        self._number += 1
        seed_decision(self._rng, self._seed, self._number)
        try:
            return decide()
        except Exception:
            self._counts.faults += 1
            if question not in self._failed:
                self._failed.add(question)
                logger.exception("bana: the %s policy failed; SGLang's own choice stands", question)
            return None
