"""How sure a benchmark may be of its median."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from bana.slo.errors import ConfigError

RESAMPLES = 2000
CONFIDENCE = 0.95


class Interval(msgspec.Struct, frozen=True):
    """A median `value` and the interval `low`..`high` that the resampling gives it."""

    value: float
    low: float
    high: float


def bootstrap_median(ratios: Sequence[float], seed: int) -> Interval:
    """Median of `ratios` with its 95 % percentile-bootstrap interval.

    One sample is its own interval. The same ratios and seed give the same interval.
    O(RESAMPLES x len(ratios)). Source: Efron and Tibshirani 1993, ch. 13.
    """
    samples = np.asarray(ratios, dtype=np.float64)
    if samples.ndim != 1 or samples.size == 0 or not np.isfinite(samples).all():
        raise ConfigError(
            f"cannot take the median of {list(ratios)!r}: allowed are one or more finite numbers; "
            "leave out the repetitions that failed"
        )
    draws = np.random.default_rng(seed).integers(samples.size, size=(RESAMPLES, samples.size))
    medians = np.median(samples[draws], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, (tail, 1 - tail))
    return Interval(value=float(np.median(samples)), low=float(low), high=float(high))


def bootstrap_paired(
    numerators: Sequence[float], denominators: Sequence[float], seed: int
) -> Interval:
    """Median of the ratios of runs taken in pairs, with its bootstrap interval."""
    if len(numerators) != len(denominators):
        raise ConfigError(
            f"{len(numerators)} numerators cannot be paired with {len(denominators)} denominators: "
            "take both runs of each pair"
        )
    if any(value <= 0 for value in denominators):
        raise ConfigError(
            f"cannot divide by {min(denominators):g}: every denominator of a paired ratio must be "
            "above 0; leave out the pairs that failed"
        )
    pairs = zip(numerators, denominators, strict=True)
    return bootstrap_median([above / below for above, below in pairs], seed)
