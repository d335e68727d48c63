"""What the policies are told of times: a belief, which may be wrong, never the truth."""

from __future__ import annotations

from random import Random
from typing import Annotated, Protocol

import msgspec

from bana.eval.simulator.jobs import Job
from bana.eval.workload.spec import Section
from bana.slo.steps import StepModel, StepShape


class DoubtSpec(Section, frozen=True):
    """How predictions are wrong: each request's by a lognormal factor of `sigma`, all by `bias`.

    `bias` 2 predicts twice the time; 1 and a `sigma` of 0 are right.
    """

    sigma: Annotated[float, msgspec.Meta(ge=0, le=5)] = 0.0
    bias: Annotated[float, msgspec.Meta(gt=0, le=100)] = 1.0


def draw_doubt(spec: DoubtSpec, rng: Random) -> float:
    """The factor of one request; its median is 1."""
    return rng.lognormvariate(0.0, spec.sigma) if spec.sigma else 1.0


class Belief(Protocol):
    """Coefficients that may change with every step that is seen; `StepEstimator` is one."""

    @property
    def model(self) -> StepModel: ...

    def observe(self, shape: StepShape, measured_s: float) -> None: ...


class FixedBelief:
    """Coefficients that nothing changes, off by a factor."""

    def __init__(self, model: StepModel, bias: float = 1.0) -> None:
        self._model = StepModel(*(bias * value for value in msgspec.structs.astuple(model)))

    @property
    def model(self) -> StepModel:
        return self._model

    def observe(self, shape: StepShape, measured_s: float) -> None:
        pass


class Predictor:
    """Predicts the time to the first token of what is left of a prompt, served alone."""

    def __init__(self, belief: Belief, chunk_tokens: int) -> None:
        self.belief = belief
        self._chunk_tokens = chunk_tokens

    def predict_service_s(self, job: Job) -> float:
        known = max(job.done, job.matched)
        model = self.belief.model
        return job.doubt * model.estimate_prefill_s(job.target - known, known, self._chunk_tokens)
