"""What a machine's step log says about its step times."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from bana.slo.errors import PlanError
from bana.slo.features import (
    FEATURES,
    GROUPS,
    LONGEST_S,
    SHORTEST_S,
    classify_step,
    count_features,
    is_usable,
    model_of,
    split_first,
)
from bana.slo.governor import StepKind
from bana.slo.regression import Equations, Floats, clip_ratios, refit
from bana.slo.steps import StepModel, StepShape

# Each round moves a prediction at most by the guard; these suffice for a first guess that is 10^4
# off.
_ROUNDS = 25
_GUARD = 0.5
_INERTIA = 0.05


class StepObservation(msgspec.Struct, frozen=True):
    """A step that ran and what it took: one line of a step log."""

    shape: StepShape
    measured_s: float


def fit_model(observations: Sequence[StepObservation]) -> StepModel:
    """The model that suits a step log, every line of it alike; PlanError when none is usable.

    What the log never shows costs nothing: without decode steps those are free. Relative errors
    count, those beyond one half only as one half. O(observations).
    """
    usable = [o for o in observations if is_usable(o.shape, o.measured_s)]
    if not usable:
        raise PlanError(
            f"a step model needs measured steps, and none of {len(observations)} observations has "
            "work and a positive finite time; take them from the log of an engine under load"
        )
    measured_s = np.clip([o.measured_s for o in usable], SHORTEST_S, LONGEST_S)
    coefficients = _guess(usable)
    for _ in range(_ROUNDS):
        model = model_of(coefficients)
        rows = np.array([count_features(o.shape, model) for o in usable])
        predicted_s = np.maximum(rows @ coefficients, SHORTEST_S)
        equations = Equations(FEATURES)
        ratios = clip_ratios(measured_s / predicted_s, _GUARD)
        equations.add(rows / predicted_s[:, np.newaxis], ratios)
        coefficients = refit(coefficients, equations, GROUPS, _INERTIA)
    return model_of(coefficients)


def _guess(observations: Sequence[StepObservation]) -> Floats:
    """Per coefficient, the median of what each step alone would make of it."""
    guess = np.zeros(FEATURES)
    pure = zip(GROUPS, (StepKind.PREFILL, StepKind.DECODE), strict=True)
    mixed = [o for o in observations if classify_step(o.shape) is StepKind.MIXED]
    for group, kind in pure:
        alone = [o for o in observations if classify_step(o.shape) is kind]
        # A mixed step says nothing about its two halves; take them as equal.
        splits = [split_first(o.shape, o.measured_s) for o in alone]
        splits = splits or [split_first(o.shape, o.measured_s / 2) for o in mixed]
        if splits:
            guess[group] = np.median(np.array(splits), axis=0)[group]
    return guess
