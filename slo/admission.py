"""Whether a request is taken in at all: the protocol, its view, the built-in policies."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec

from bana.slo.budget import Budget


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
