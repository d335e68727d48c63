"""What two runs are compared in."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from bana.eval.resampling import Floats, divide
from bana.eval.segments import SegmentedRun, average_draws, rank_draws
from bana.slo.figures import Better

Measure = Callable[[SegmentedRun, Floats], Floats]


class Metric(msgspec.Struct, frozen=True):
    """One figure; `measure` gives its value in each draw of segments, NaN where it has none."""

    name: str
    better: Better
    measure: Measure


def measure_ttft_mean_s(run: SegmentedRun, weights: Floats) -> Floats:
    """Mean TTFT from the schedule."""
    return average_draws(run.ttft_s, weights)


def measure_ttft_p99_s(run: SegmentedRun, weights: Floats) -> Floats:
    """p99 TTFT from the schedule."""
    return rank_draws(run.ttft_s, weights, 0.99)


def measure_tpot_mean_s(run: SegmentedRun, weights: Floats) -> Floats:
    """Mean TPOT over requests."""
    return average_draws(run.tpot_s, weights)


def measure_attainment(run: SegmentedRun, weights: Floats) -> Floats:
    """Met over offered."""
    return divide(weights @ run.met, weights @ run.offered)


def measure_goodput_rps(run: SegmentedRun, weights: Floats) -> Floats:
    """Met over the window's length."""
    return weights @ run.met / run.window_s


def measure_output_tokens_per_s(run: SegmentedRun, weights: Floats) -> Floats:
    """Tokens that came in the window over its length."""
    return weights @ run.tokens / run.window_s


METRICS = (
    Metric("ttft_mean_s", Better.LOWER, measure_ttft_mean_s),
    Metric("ttft_p99_s", Better.LOWER, measure_ttft_p99_s),
    Metric("tpot_mean_s", Better.LOWER, measure_tpot_mean_s),
    Metric("attainment", Better.HIGHER, measure_attainment),
    Metric("goodput_rps", Better.HIGHER, measure_goodput_rps),
    Metric("output_tokens_per_s", Better.HIGHER, measure_output_tokens_per_s),
)
