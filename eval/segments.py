"""A run cut into the equal time segments that are drawn again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from bana.eval.distributions import measure_tpot_s, measure_ttft_s
from bana.eval.judging import judge
from bana.eval.requests import Observed
from bana.eval.resampling import Floats, divide, place_times, total_segments
from bana.eval.runs import RunRecord, Window, place_window, select_window


class SegmentedValues(msgspec.Struct, frozen=True):
    """Values in rising order, each with its segment."""

    values: Floats
    places: npt.NDArray[np.int64]


class SegmentedRun(msgspec.Struct, frozen=True):
    """A run by segment: counts, and the latencies of the requests due in it."""

    window_s: float
    offered: Floats
    met: Floats
    tokens: Floats
    ttft_s: SegmentedValues
    tpot_s: SegmentedValues


def cut_run(record: RunRecord) -> SegmentedRun:
    """Cut a run: requests by when they were due, tokens by when they came."""
    window, counted = place_window(record.run, record.about), select_window(record.run)
    places = place_times((o.due_s for o in counted), window)
    return SegmentedRun(
        window_s=window.length_s,
        offered=total_segments(places, (1.0 for _ in counted)),
        met=total_segments(places, (float(not judge(o)) for o in counted)),
        tokens=total_tokens(record.run.observed, window),
        ttft_s=_cut_values(map(measure_ttft_s, counted), places),
        tpot_s=_cut_values(map(measure_tpot_s, counted), places),
    )


def total_tokens(observed: Sequence[Observed], window: Window) -> Floats:
    """The output tokens that came in each segment of the window, whichever request's they are."""
    times_s = np.array([at_s for o in observed for at_s in o.event_times_s], dtype=np.float64)
    tokens = np.array([count for o in observed for count in o.event_tokens], dtype=np.float64)
    inside = (times_s >= window.start_s) & (times_s < window.end_s)
    return total_segments(place_times(times_s[inside], window), tokens[inside])


def average_draws(segmented: SegmentedValues, weights: Floats) -> Floats:
    """The mean of each draw, NaN where it holds no value."""
    sums = total_segments(segmented.places, segmented.values)
    counts = total_segments(segmented.places, np.ones(segmented.values.size))
    return divide(weights @ sums, weights @ counts)


def rank_draws(segmented: SegmentedValues, weights: Floats, quantile: float) -> Floats:
    """The quantile of each draw by linear interpolation, NaN where it holds no value."""
    return np.array([_rank(segmented, row, quantile) for row in weights], dtype=np.float64)


def _rank(segmented: SegmentedValues, row: Floats, quantile: float) -> float:
    counts = np.cumsum(row[segmented.places])
    if counts.size == 0 or counts[-1] == 0:
        return float("nan")
    rank = quantile * (counts[-1] - 1)
    # A value that is drawn k times fills k ranks.
    below, above = np.searchsorted(counts, (np.floor(rank), np.ceil(rank)), side="right")
    low, high = segmented.values[below], segmented.values[above]
    return float(low + (high - low) * (rank - np.floor(rank)))


def _cut_values(values: Iterable[float | None], places: npt.NDArray[np.int64]) -> SegmentedValues:
    column = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
    order = np.argsort(column, kind="stable")[: np.count_nonzero(~np.isnan(column))]
    return SegmentedValues(column[order], places[order])
