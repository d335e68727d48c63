"""From figures to places on a drawing, with ticks a person would have chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise

import msgspec

from bana.eval.report.numbers import Format

LOG_STEPS = ((1, 1.5, 2, 3, 4, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,))
MIN_TICK_GAP = 0.17
MAX_DECADES = 6
# Two ticks at least are within this factor.
MIN_LOG_SPAN = 3.0
LOG_MARGIN = 1.04
# A range narrower than this share of its numbers is a point.
SMALLEST_SHARE = 1e-9
# Nothing on a latency axis is finer than a clock tells.
SMALLEST_LOG = 1e-5


class ScaleKind(StrEnum):
    """How values are spread along an axis."""

    LINEAR = "linear"
    LOG = "log"


class Scale(msgspec.Struct, frozen=True):
    """Values `low`..`high` on an axis."""

    low: float
    high: float
    kind: ScaleKind = ScaleKind.LINEAR

    def share(self, value: float) -> float:
        """How far along the axis a value lies, 0..1; what is outside lies at the nearer end."""
        if self.kind is ScaleKind.LINEAR:
            share = (value - self.low) / (self.high - self.low)
        else:
            span = math.log(self.high / self.low)
            share = math.log(max(value, self.low) / self.low) / span
        return min(max(share, 0.0), 1.0)


class Tick(msgspec.Struct, frozen=True):
    """A mark on an axis; an empty text is a mark without a word."""

    at: float
    text: str


class Axis(msgspec.Struct, frozen=True):
    """What one direction of a plot shows."""

    scale: Scale
    ticks: tuple[Tick, ...]
    label: str = ""


def plan_linear(low: float, high: float, form: Format, ticks: int = 5) -> Axis:
    """An axis from one round step to another around `low`..`high`."""
    if high - low <= SMALLEST_SHARE * max(abs(low), abs(high)):
        # Rounding alone made it: steps between such numbers are none.
        high = low
    step = _round_step(low, high, ticks)
    first, last = math.floor(low / step + 1e-9), math.ceil(_widen(low, high) / step - 1e-9)
    marks = tuple(Tick(n * step, form(n * step)) for n in range(first, last + 1))
    return Axis(Scale(first * step, last * step), marks)


def plan_span(low: float, high: float, form: Format, ticks: int = 5) -> Axis:
    """An axis over exactly `low`..`high`, with round steps within."""
    step = _round_step(low, high, ticks)
    first, last = math.ceil(low / step - 1e-9), math.floor(_widen(low, high) / step + 1e-9)
    marks = tuple(Tick(n * step, form(n * step)) for n in range(first, last + 1))
    return Axis(Scale(low, _widen(low, high)), marks)


def _widen(low: float, high: float) -> float:
    return high if high > low else low + max(abs(low), 1.0)


def _round_step(low: float, high: float, ticks: int) -> float:
    step = (_widen(low, high) - low) / ticks
    power = 10.0 ** math.floor(math.log10(step))
    return next(m for m in (1, 2, 5, 10) if m * power >= step * 0.999) * power


def plan_log(values: Sequence[float], form: Format) -> Axis:
    """A logarithmic axis over all positive values, marked at the finest round steps that fit."""
    known = [max(v, SMALLEST_LOG) for v in values] or [1e-3, 1.0]
    low, high = min(known) / LOG_MARGIN, max(known) * LOG_MARGIN
    widened = max(1.0, math.sqrt(MIN_LOG_SPAN * low / high))
    scale = Scale(low / widened, high * widened, ScaleKind.LOG)
    choices = (_list_marks(scale.low, scale.high, steps) for steps in LOG_STEPS)
    marks = next((m for m in choices if _is_airy(m, scale)), None)
    if marks is None:
        decades = _list_marks(scale.low, scale.high, (1,))
        marks = decades[:: math.ceil(len(decades) / MAX_DECADES)]
    return Axis(scale, tuple(Tick(at, form(at)) for at in marks))


def _is_airy(marks: Sequence[float], scale: Scale) -> bool:
    """Whether the words of the marks do not touch, on a narrow screen either."""
    places = [scale.share(mark) for mark in marks]
    return all(right - left >= MIN_TICK_GAP for left, right in pairwise(places))


def _list_marks(low: float, high: float, steps: Sequence[float]) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = (step * 10.0**power for power in powers for step in steps)
    return [mark for mark in marks if low <= mark <= high]
