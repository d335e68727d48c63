"""Statistics and moments as llm-d's Benchmark Report 0.2.1 writes them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence

import numpy as np

from bana.eval.report.curves import BinSummary
from bana.eval.summary import Distribution

Json = Mapping[str, object]

COUNT = "count"
FRACTION = "fraction"
SECONDS = "s"
SECONDS_PER_TOKEN = "s/token"
TOKENS_PER_SECOND = "tokens/s"
QUERIES_PER_SECOND = "queries/s"
PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)


def describe_values(values: Sequence[float], units: str) -> Json | None:
    """Every statistic that the format knows, but for the outermost percentiles and the mode."""
    if not values:
        return None
    known = np.array(values, dtype=np.float64)
    quantiles = np.percentile(known, PERCENTILES)
    return {
        "units": units,
        "mean": float(known.mean()),
        "stddev": float(known.std()),
        "min": float(known.min()),
        **{f"p{p}": float(q) for p, q in zip(PERCENTILES, quantiles, strict=True)},
        "max": float(known.max()),
    }


def describe_distribution(distribution: Distribution | None, units: str) -> Json | None:
    """The statistics that a summary has."""
    if distribution is None:
        return None
    d = distribution
    percentiles = {"p50": d.p50, "p90": d.p90, "p95": d.p95, "p99": d.p99}
    return {"units": units, "mean": d.mean, **percentiles, "max": d.largest}


def describe_mean(mean: float, units: str) -> Json:
    """A figure that is known as a whole only."""
    return {"units": units, "mean": mean}


def describe_series(
    summary: BinSummary | None, units: str, started_at: datetime.datetime | None
) -> Json | None:
    """Median and largest of each stretch; None where nobody knows when the run began."""
    if summary is None or started_at is None or not summary.middles_s:
        return None
    points = zip(summary.middles_s, summary.medians, summary.largest, strict=True)
    return {
        "units": units,
        "series": [
            {"ts": tell_time(started_at, at_s), "p50": median, "max": largest}
            for at_s, median, largest in points
        ],
    }


def tell_time(started_at: datetime.datetime, after_s: float) -> str:
    """A moment of the run as ISO 8601."""
    return (started_at + datetime.timedelta(seconds=after_s)).isoformat()


def drop_missing(fields: Json) -> Json:
    """The fields that have a value; the format leaves the others out."""
    return {name: value for name, value in fields.items() if value is not None}
