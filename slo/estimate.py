"""How long the next steps of this engine will take, learned from those that were measured.

shape ──▶ model ──▶ predicted_s ─┐
measured_s ──────────────────────┴▶ ratio ─ within the band ─▶ equations ─▶ model
                                      └─── outside it ───▶ run ─ long ─▶ change of speed
                                                            └─ broken ─▶ equations, clipped
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import Annotated

import msgspec
import numpy as np

from bana.slo.features import (
    FEATURES,
    GROUPS,
    LONGEST_S,
    SHORTEST_S,
    classify_step,
    coefficients_of,
    count_features,
    is_usable,
    list_unknown,
    model_of,
    split_first,
)
from bana.slo.governor import StepKind
from bana.slo.regression import Equations, Floats, clip_ratios, refit
from bana.slo.steps import StepModel, StepShape

# The pull, in observations, while asking whether any one model explains both past and present.
TRIAL_INERTIA = 0.01
# Which equations speak about coefficients that a step of some kind speaks about too.
KIN = {
    StepKind.PREFILL: (StepKind.PREFILL, StepKind.MIXED),
    StepKind.DECODE: (StepKind.DECODE, StepKind.MIXED),
    StepKind.MIXED: tuple(StepKind),
}


@dataclasses.dataclass(frozen=True)
class EstimatorOptions:
    """How fast a model follows what is measured.

    A step fades with a time constant of `memory_steps` later ones about the same coefficients. A
    measurement counts at most `guard` beyond its prediction (0.5: from 2/3 to 3/2 of it).
    `change_steps` consecutive ones of a kind that miss by half the guard in one direction are a
    change, not a stall; fewer where fewer were measured. `inertia` is the pull towards present
    coefficients, in observations. Errors fade with a time constant of `error_memory_steps`.
    """

    memory_steps: Annotated[float, msgspec.Meta(ge=8, le=100_000)] = 200.0
    guard: Annotated[float, msgspec.Meta(ge=0.1, le=10)] = 0.5
    change_steps: Annotated[int, msgspec.Meta(ge=3, le=100)] = 8
    inertia: Annotated[float, msgspec.Meta(ge=0.001, le=1000)] = 0.1
    solve_every_steps: Annotated[int, msgspec.Meta(ge=1, le=100)] = 8
    error_memory_steps: Annotated[float, msgspec.Meta(ge=1, le=100_000)] = 50.0


class KindError(msgspec.Struct, frozen=True):
    """How well steps of one kind were predicted before they ran.

    Errors are (measured - predicted) / the larger of both, so from -1 to 1 whatever is measured;
    `bias` is their recent mean, positive when steps take longer than predicted, `error` that of
    their absolute values.
    """

    observations: int = 0
    error: float = 0.0
    bias: float = 0.0


class EstimatorState(msgspec.Struct, frozen=True):
    """What an estimator has learned; `model` is a prior for the next one.

    `ignored` counts measurements that were no positive finite time or had an impossible shape,
    `reconsidered` how often a run of misses made the model give up what it believed.
    """

    model: StepModel
    errors: dict[StepKind, KindError]
    ignored: int
    reconsidered: int


class _Seen(msgspec.Struct, frozen=True):
    """A measurement that is not in the equations yet."""

    row: tuple[float, ...]
    predicted_s: float
    ratio: float


class StepEstimator:
    """The model of an engine's step times, kept up to date by every measured step.

    Without a prior unmeasured work costs nothing; the first step of a kind is split over its
    coefficients by `FIRST_SHARES`, and later ones move these. Memory is bounded; `observe` is
    O(FEATURES^2), and O(FEATURES^3) every `solve_every_steps`.
    """

    def __init__(
        self, prior: StepModel | None = None, options: EstimatorOptions | None = None
    ) -> None:
        self._options = options or EstimatorOptions()
        self._keep = math.exp(-1.0 / self._options.memory_steps)
        self._coefficients = coefficients_of(prior) if prior else np.zeros(FEATURES)
        self._model = model_of(self._coefficients)
        self._equations = {kind: Equations(FEATURES) for kind in StepKind}
        self._waiting: dict[StepKind, list[_Seen]] = {kind: [] for kind in StepKind}
        self._runs: dict[StepKind, list[_Seen]] = {kind: [] for kind in StepKind}
        self._errors = {kind: KindError() for kind in StepKind}
        # A prior counts as if it had been measured just long enough to be defended against stalls.
        self._trust = dict.fromkeys(StepKind, self._options.change_steps if prior else 0)
        self._unsolved = 0
        self._ignored = 0
        self._reconsidered = 0

    @property
    def model(self) -> StepModel:
        """The present coefficients."""
        return self._model

    @property
    def state(self) -> EstimatorState:
        """A snapshot for metrics, and to start another estimator from."""
        return EstimatorState(self._model, dict(self._errors), self._ignored, self._reconsidered)

    def observe(self, shape: StepShape, measured_s: float) -> None:
        """Learn from a step that took `measured_s`; what cannot be a measurement is ignored."""
        if not is_usable(shape, measured_s):
            self._ignored += 1
            return
        measured_s = min(max(float(measured_s), SHORTEST_S), LONGEST_S)
        kind = classify_step(shape)
        unknown = list_unknown(shape, self._model)
        if unknown:
            self._learn_first(shape, measured_s, unknown)
        predicted_s = max(self._model.estimate_step_s(shape), SHORTEST_S)
        if not unknown:
            self._track_error(kind, predicted_s, measured_s)
        row = count_features(shape, self._model)
        self._sort_in(kind, _Seen(row, predicted_s, measured_s / predicted_s))

    def _learn_first(self, shape: StepShape, measured_s: float, unknown: list[slice]) -> None:
        """Split what the known groups leave of a measurement over the `unknown` ones."""
        rest_s = max(measured_s - self._model.estimate_step_s(shape), 0.1 * measured_s)
        split = split_first(shape, rest_s / len(unknown))
        for group in unknown:
            self._coefficients[group] = split[group]
        self._model = model_of(self._coefficients)

    def _track_error(self, kind: StepKind, predicted_s: float, measured_s: float) -> None:
        past = self._errors[kind]
        count = past.observations + 1
        rate = 1.0 / min(count, self._options.error_memory_steps)
        miss = (measured_s - predicted_s) / max(measured_s, predicted_s)
        error = past.error + rate * (abs(miss) - past.error)
        self._errors[kind] = KindError(count, error, past.bias + rate * (miss - past.bias))

    def _sort_in(self, kind: StepKind, seen: _Seen) -> None:
        """Among the good ones, or into the run of misses that it continues."""
        run, side = self._runs[kind], self._side(seen.ratio)
        if run and self._side(run[0].ratio) != side:
            # Those were stalls: they count, but only as far as the guard lets them.
            self._accept(kind, run)
            run.clear()
        if not side:
            self._accept(kind, [seen])
        else:
            run.append(seen)
        if len(run) >= min(self._options.change_steps, 1 + self._trust[kind]):
            self._apply_change(kind)
        elif self._unsolved >= min(self._options.solve_every_steps, self._trust[kind]):
            self._solve()

    def _side(self, ratio: float) -> int:
        """1 when much longer than predicted, -1 when much shorter, else 0."""
        band = 1.0 + self._options.guard / 2
        return int(ratio > band) - int(ratio * band < 1.0)

    def _accept(self, kind: StepKind, seen: list[_Seen]) -> None:
        self._waiting[kind].extend(seen)
        self._unsolved += len(seen)
        self._trust[kind] += len(seen)

    def _apply_change(self, kind: StepKind) -> None:
        """Let one model explain the past and the run; where none can, forget the past."""
        run, guard = self._runs[kind], self._options.guard
        self._absorb()
        speed = statistics.median(seen.ratio for seen in run)
        recent = Equations(FEATURES)
        recent.add(*_relate(run, speed, guard))
        past = {k: equations.limit(len(run)) for k, equations in self._equations.items()}
        joined = Equations.join((*past.values(), recent), FEATURES)
        tried = refit(self._coefficients, joined, GROUPS, TRIAL_INERTIA)
        errors = [side.estimate_error(tried) for side in (*past.values(), recent)]
        is_one_model = max(errors) <= guard / 2
        if is_one_model:
            self._coefficients = tried
        for other in KIN[kind]:
            self._equations[other] = past[other] if is_one_model else Equations(FEATURES)
        self._equations[kind] = Equations.join((self._equations[kind], recent), FEATURES)
        self._trust[kind] = max(self._trust[kind], len(run))
        self._reconsidered += 1
        run.clear()
        self._solve()

    def _absorb(self) -> None:
        """Move what waits into the equations; those about the same coefficients fade with it."""
        for kind, waiting in self._waiting.items():
            if not waiting:
                continue
            for other in KIN[kind]:
                self._equations[other].scale(self._keep ** len(waiting) if other != kind else 1.0)
            rows, ratios = _relate(waiting, 1.0, self._options.guard)
            self._equations[kind].add(rows, ratios, self._keep)
            waiting.clear()

    def _solve(self) -> None:
        self._absorb()
        equations = Equations.join(self._equations.values(), FEATURES)
        self._coefficients = refit(self._coefficients, equations, GROUPS, self._options.inertia)
        self._model = model_of(self._coefficients)
        self._unsolved = 0


def _relate(seen: list[_Seen], speed: float, guard: float) -> tuple[Floats, Floats]:
    """Rows and clipped ratios, relative to predictions corrected by `speed`."""
    expected_s = np.array([one.predicted_s * speed for one in seen])
    ratios = np.array([one.ratio / speed for one in seen])
    rows = np.array([one.row for one in seen]) / expected_s[:, np.newaxis]
    return rows, clip_ratios(ratios, guard)
