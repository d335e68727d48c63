"""Whether a request is taken in at all: the protocol, its view, the built-in policies."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from typing import Annotated, Protocol

import msgspec

from bana.slo.budget import Budget
from bana.slo.registry import PolicyEntry, PolicyRegistry


class Verdict(StrEnum):
    """What became of an arriving request."""

    ADMITTED = "admitted"
    REJECTED_INFEASIBLE = "rejected_infeasible"


class ArrivalView(msgspec.Struct, frozen=True):
    """A request as it reaches the engine.

    `service_s` is the predicted time to its first token alone; `ahead_s` the predicted work, alone,
    of everything that would run before it; `inflation` how much longer things take now.
    """

    budget: Budget
    service_s: float
    ahead_s: float
    inflation: float


class AdmissionDecision(msgspec.Struct, frozen=True):
    """The verdict and why; `retry_after_s` says when a refused client should come again."""

    verdict: Verdict
    reason: str
    retry_after_s: float | None = None


class Admission(Protocol):
    """Law: a refusal carries a positive `retry_after_s`; equal inputs give equal answers."""

    def decide_admission(self, view: ArrivalView, now_s: float) -> AdmissionDecision: ...


class Accept:
    """Everybody: late answers are for the order to demote, not for the door to refuse."""

    def decide_admission(self, view: ArrivalView, now_s: float) -> AdmissionDecision:
        return AdmissionDecision(Verdict.ADMITTED, "always")


@dataclasses.dataclass(frozen=True)
class RejectInfeasibleOptions:
    """`guard`: how many times its predicted wait and service must fit before the deadline.

    A refused client is told to come again after `min_retry_s` to `max_retry_s`.
    """

    guard: Annotated[float, msgspec.Meta(ge=0.1, le=10)] = 1.0
    min_retry_s: Annotated[float, msgspec.Meta(ge=0.001, le=3600)] = 0.5
    max_retry_s: Annotated[float, msgspec.Meta(ge=0.001, le=3600)] = 60.0

    def __post_init__(self) -> None:
        if self.min_retry_s > self.max_retry_s:
            raise ValueError(
                f"min_retry_s={self.min_retry_s} exceeds max_retry_s={self.max_retry_s}; swap them"
            )


class RejectInfeasible:
    """Whoever would miss the deadline even if nothing else arrived.

    now ── work ahead ──┬── service ──▶ first token     refused where that, times inflation and
                        └ deadline - now ┘              guard, ends after the deadline
    """

    def __init__(self, options: RejectInfeasibleOptions) -> None:
        self._options = options

    def decide_admission(self, view: ArrivalView, now_s: float) -> AdmissionDecision:
        stretch = self._options.guard * view.inflation
        first_token_s = now_s + stretch * (view.ahead_s + view.service_s)
        if first_token_s <= view.budget.deadline_s:
            return AdmissionDecision(Verdict.ADMITTED, "feasible")
        infeasible = Verdict.REJECTED_INFEASIBLE
        if stretch * view.service_s > view.budget.ttft_s:
            return AdmissionDecision(infeasible, "infeasible_alone", self._options.max_retry_s)
        return AdmissionDecision(infeasible, "infeasible", self._estimate_retry_s(view))

    def _estimate_retry_s(self, view: ArrivalView) -> float:
        """When so much work ahead has been done that the same request, come anew, would fit."""
        affordable_s = view.budget.ttft_s / (self._options.guard * view.inflation)
        excess_s = view.ahead_s + view.service_s - affordable_s
        drained_s = excess_s * view.inflation
        return min(max(drained_s, self._options.min_retry_s), self._options.max_retry_s)


ADMISSION: PolicyRegistry[Admission] = PolicyRegistry(
    "admission",
    {
        "accept": PolicyEntry(lambda _: Accept()),
        "reject_infeasible": PolicyEntry(RejectInfeasible, RejectInfeasibleOptions),
    },
    members=("decide_admission",),
)
DEFAULT_ADMISSION = "accept"
