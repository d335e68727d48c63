"""How sure one run may be of its figures: equal segments of its window, drawn again.

    window  │ 0 │ 1 │ 2 │ … │ 9 │   each draw takes 10 segments with replacement

Requests that queue together miss together, so single requests may not be redrawn; segments that
outlast the queueing may. Few segments vary too little among themselves, so the tails that an
interval leaves out are as much thinner as Student's t is wider than the normal.
Source: Carlstein 1986 (contiguous blocks); Hesterberg 2015, The American Statistician 69
(expanded percentiles); the number of segments is ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from bana.eval.runs import Window
from bana.eval.summary import Spread
from bana.slo.stats import RESAMPLES, bootstrap_median

SEGMENTS = 10
SEED = 0

# The share of draws that a 95 % interval leaves out at each end, 0.9 %.
STUDENT_T = 2.262  # its 97.5 % quantile for SEGMENTS - 1 degrees of freedom
TAIL = NormalDist().cdf(-STUDENT_T * math.sqrt(SEGMENTS / (SEGMENTS - 1)))
MAX_UNDEFINED_SHARE = 0.01

Floats = npt.NDArray[np.float64]

# How often each segment is taken: every one once.
WHOLE: Floats = np.ones((1, SEGMENTS))


def draw_weights(seed: int = SEED) -> Floats:
    """How often each draw takes each segment: `RESAMPLES` rows that sum to `SEGMENTS`."""
    even = np.full(SEGMENTS, 1 / SEGMENTS)
    drawn = np.random.default_rng(seed).multinomial(SEGMENTS, even, size=RESAMPLES)
    return drawn.astype(np.float64)


def place_times(times_s: Iterable[float], window: Window) -> npt.NDArray[np.int64]:
    """The segment of each time; what lies outside the window is in the nearest one."""
    shares = (np.array(list(times_s), dtype=np.float64) - window.start_s) / window.length_s
    return np.clip(np.floor(shares * SEGMENTS), 0, SEGMENTS - 1).astype(np.int64)


def total_segments(places: npt.NDArray[np.int64], amounts: Iterable[float]) -> Floats:
    """What each segment holds of `amounts`."""
    weights = np.array(list(amounts), dtype=np.float64)
    return np.bincount(places, weights=weights, minlength=SEGMENTS).astype(np.float64)


def divide(above: Floats, below: Floats) -> Floats:
    """The quotients, NaN where there is none."""
    undefined = np.full(np.broadcast(above, below).shape, np.nan)
    quotients: Floats = np.divide(above, below, out=undefined, where=below != 0)
    return quotients


def spread_known(value: float, drawn: Floats) -> Spread:
    """A value with its 95 % interval over the draws that have one."""
    known = np.append(drawn[np.isfinite(drawn)], value)
    low, high = np.quantile(known, (TAIL, 1 - TAIL))
    return Spread(value, min(float(low), value), max(float(high), value))


def spread_draws(value: float, drawn: Floats) -> Spread | None:
    """The same; None where more than 1 % of the draws have no value."""
    undefined = np.count_nonzero(~np.isfinite(drawn))
    return None if undefined > MAX_UNDEFINED_SHARE * drawn.size else spread_known(value, drawn)


def spread_runs(values: Sequence[float]) -> Spread:
    """The median of one figure over runs with several seeds, with its bootstrap interval."""
    interval = bootstrap_median(values, SEED)
    return Spread(interval.value, interval.low, interval.high)
