"""The coefficients that come nearest to other step times: what a policy may believe of them."""

from __future__ import annotations

import msgspec

from bana.eval.simulator.service import StepTimes
from bana.slo.fit import StepObservation, fit_model
from bana.slo.steps import StepModel, StepShape, count_attended

CHUNKS = (16, 64, 128, 256, 512, 1024, 2048, 4096)
PREFIXES = (0, 1024, 4096, 16_384, 65_536)
BATCHES = (1, 4, 16, 32, 64, 128, 256)
CONTEXTS = (128, 1024, 4096, 16_384)


class Fit(msgspec.Struct, frozen=True):
    """Coefficients, and by which share they miss the steps they were fitted to."""

    model: StepModel
    lowest_error: float
    highest_error: float


def fit_steps(times: StepTimes) -> Fit:
    """The fit to prompt chunks and decode steps of common sizes, errors taken as shares."""
    shapes = [StepShape(n, count_attended(n, p)) for n in CHUNKS for p in PREFIXES]
    shapes += [
        StepShape(decode_requests=b, context_tokens=b * c) for b in BATCHES for c in CONTEXTS
    ]
    seen = [StepObservation(shape, times.estimate_step_s(shape)) for shape in shapes]
    model = fit_model(seen)
    errors = [model.estimate_step_s(one.shape) / one.measured_s - 1 for one in seen]
    return Fit(model, min(errors), max(errors))
