"""From the points of all sides and seeds to the figures of one workload.

Every figure is taken seed by seed, and told as the median with the smallest and largest seed. A
max rate that some seed does not bracket is no figure: what was found instead is told beside it, and
what the ratio is at least.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from bana.eval.bench.pairs import figure_range
from bana.eval.bench.slo.points import PointSeen
from bana.eval.bench.slo.settings import BUDGET, TUNED
from bana.eval.capacity import find_max_rate
from bana.eval.summary import LoadPoint, MaxRate
from bana.slo.figures import Aim, Better, Figure

RATE_AIM = Aim(1.5)
MISSES_AIM = Aim(0.4, Better.LOWER)
LIGHT_AIM = Aim(0.98)

# The points of one side, seed by seed.
Curves = Sequence[Sequence[PointSeen]]


class WorkloadRuns(msgspec.Struct, frozen=True):
    """Everything measured of one workload: points by side and seed, and those at the light load."""

    name: str
    curves: Mapping[str, Curves]
    light: Mapping[str, Sequence[PointSeen]]
    target: float
    p99_limit_s: float


class Found(msgspec.Struct, frozen=True):
    """The figures of one workload, and what a reader must know beside them."""

    figures: dict[str, Figure]
    notes: dict[str, object]


class Rates(msgspec.Struct, frozen=True):
    """The max rates of all sides, seed by seed, and the best stock side among them."""

    by_side: Mapping[str, Sequence[MaxRate]]
    best: str
    p99_limit_s: float | None

    def list_pairs(self) -> list[tuple[float, float]] | None:
        """Budget and best stock side in each seed; None where a seed brackets one of them not."""
        found = [
            (ours.rps, theirs.rps)
            for ours, theirs in zip(self.by_side[BUDGET], self.by_side[self.best], strict=True)
        ]
        pairs = [(a, b) for a, b in found if a is not None and b is not None]
        return pairs if len(pairs) == len(found) else None

    def list_least(self) -> list[float] | None:
        """In each seed, what the budget side carries at least over what the best stock side carries
        at most; None where a seed shows no bound of that.
        """
        pairs = [
            (bound_rate(ours, self.p99_limit_s), bound_above(theirs, self.p99_limit_s))
            for ours, theirs in zip(self.by_side[BUDGET], self.by_side[self.best], strict=True)
        ]
        ratios = [least / most for least, most in pairs if most is not None]
        return ratios if len(ratios) == len(pairs) else None

    def list_unbracketed(self) -> dict[str, list[str]]:
        """Why a side has no max rate, by side."""
        told = {
            side: [rate.reason for rate in rates if rate.rps is None]
            for side, rates in self.by_side.items()
        }
        return {side: reasons for side, reasons in told.items() if reasons}


def judge_workload(runs: WorkloadRuns) -> Found:
    """Every figure that the runs bear out."""
    free = find_rates(runs, None)
    bounded = find_rates(runs, runs.p99_limit_s)
    figures = dict(_list_figures(runs, free, bounded))
    notes: dict[str, object] = {
        "best_stock": free.best,
        "best_stock_p99_bounded": bounded.best,
        "p99_limit_s": runs.p99_limit_s,
        "unbracketed": free.list_unbracketed(),
        "unbracketed_p99_bounded": bounded.list_unbracketed(),
        "attainment": {side: _tabulate(curves) for side, curves in runs.curves.items()},
        "invalid_points": count_invalid(runs.curves),
    }
    return Found(figures, notes)


def find_rates(runs: WorkloadRuns, p99_limit_s: float | None) -> Rates:
    """What each side carries in each seed, and which stock side carries most; of those that carry
    nothing, that which attains most at its lowest load.
    """
    by_side = {
        side: [
            find_max_rate([point.load_point for point in curve], runs.target, p99_limit_s)
            for curve in curves
        ]
        for side, curves in runs.curves.items()
    }
    stocks = [side for side in runs.curves if side != BUDGET]

    def rank(side: str) -> tuple[float, float]:
        carried = [bound_rate(rate, p99_limit_s) for rate in by_side[side]]
        lowest = [_find_lowest(curve).attainment for curve in runs.curves[side]]
        return statistics.median(carried), statistics.fmean(lowest)

    return Rates(by_side, max(stocks, key=rank), p99_limit_s)


def bound_rate(rate: MaxRate, p99_limit_s: float | None) -> float:
    """The max rate; where it was not bracketed the highest rate offered, or 0 if none was held."""
    if rate.rps is not None:
        return rate.rps
    valid = [point for point in rate.points if point.is_valid]
    if not valid or not _is_held(valid[0], rate.target, p99_limit_s):
        return 0.0
    return max(point.offered_rps for point in valid)


def bound_above(rate: MaxRate, p99_limit_s: float | None) -> float | None:
    """The max rate; where it was not bracketed the lowest rate offered, None if that was held."""
    if rate.rps is not None:
        return rate.rps
    valid = [point for point in rate.points if point.is_valid]
    if not valid or _is_held(valid[0], rate.target, p99_limit_s):
        return None
    return valid[0].offered_rps


def _find_lowest(curve: Sequence[PointSeen]) -> PointSeen:
    return min(curve, key=lambda point: point.rate_rps)


def _is_held(point: LoadPoint, target: float, p99_limit_s: float | None) -> bool:
    is_quick = p99_limit_s is None or (
        point.p99_ttft_s is not None and point.p99_ttft_s <= p99_limit_s
    )
    return point.attainment >= target and is_quick


def interpolate(points: Sequence[tuple[float, float]], at: float) -> float | None:
    """The value at `at`, linear between the points around it; None outside of them."""
    ordered = sorted(points)
    if not ordered or not ordered[0][0] <= at <= ordered[-1][0]:
        return None
    xs, ys = zip(*ordered, strict=True)
    return float(np.interp(at, xs, ys))


def count_invalid(curves: Mapping[str, Curves]) -> int:
    """How many points prove nothing, since the client was late twice."""
    return sum(not point.is_valid for side in curves.values() for curve in side for point in curve)


def _list_figures(runs: WorkloadRuns, free: Rates, bounded: Rates) -> Iterator[tuple[str, Figure]]:
    name = runs.name
    for figure, rates, aim in (
        ("max_rate_vs_best_stock", free, RATE_AIM),
        ("max_rate_vs_best_stock_p99_bounded", bounded, None),
    ):
        pairs = rates.list_pairs()
        if pairs is not None:
            yield f"{figure}[{name}]", figure_range([a / b for a, b in pairs], "ratio", aim)
        elif least := rates.list_least():
            yield f"{figure}_at_least[{name}]", figure_range(least, "ratio", aim)
    misses = _list_misses(runs, free)
    if misses is not None:
        key = f"misses_vs_best_stock_at_its_90[{name}]"
        yield key, figure_range(misses, "ratio", MISSES_AIM)
    for side, shares in _list_longest(runs, free):
        key = f"{name}" if side == BUDGET else f"{name},{side}"
        yield f"longest_quartile_attainment[{key}]", figure_range(shares, "share")
    ratios = _list_light(runs)
    if ratios:
        yield f"light_load_vs_stock[{name}]", figure_range(ratios, "ratio", LIGHT_AIM)
    for side, found in free.by_side.items():
        rates_rps = [rate.rps for rate in found if rate.rps is not None]
        if len(rates_rps) == len(found):
            yield f"max_rate_rps[{name},{side}]", figure_range(rates_rps, "requests/s")
    for side, curves in runs.curves.items():
        lowest = [_find_lowest(curve).attainment for curve in curves]
        yield f"lowest_load_attainment[{name},{side}]", figure_range(lowest, "share")


def _list_misses(runs: WorkloadRuns, rates: Rates) -> list[float] | None:
    """Our misses over those of the best stock side at the rate at which it attains the target."""
    ratios = []
    for curve, theirs in zip(runs.curves[BUDGET], rates.by_side[rates.best], strict=True):
        ours = [(point.rate_rps, point.attainment) for point in curve if point.is_valid]
        attained = None if theirs.rps is None else interpolate(ours, theirs.rps)
        if attained is None:
            return None
        ratios.append((1.0 - attained) / (1.0 - runs.target))
    return ratios


def _list_longest(runs: WorkloadRuns, rates: Rates) -> Iterator[tuple[str, list[float]]]:
    """What the longest prompts attained at the max rate of the best stock side, side by side."""
    at_rps = [rate.rps for rate in rates.by_side[rates.best]]
    for side, curves in runs.curves.items():
        shares = []
        for curve, rps in zip(curves, at_rps, strict=True):
            points = [(p.rate_rps, p.longest_attainment) for p in curve if p.is_valid]
            share = None if rps is None else interpolate(points, rps)
            if share is not None:
                shares.append(share)
        if len(shares) == len(at_rps):
            yield side, shares


def _list_light(runs: WorkloadRuns) -> list[float]:
    """Mean TTFT of the tuned stock side over ours: where nothing waits, no order differs."""
    return [
        theirs.ttft_mean_s / ours.ttft_mean_s
        for ours, theirs in zip(runs.light[BUDGET], runs.light[TUNED], strict=True)
        if ours.ttft_mean_s and theirs.ttft_mean_s and ours.is_valid and theirs.is_valid
    ]


def _tabulate(curves: Curves) -> list[dict[str, float]]:
    """Attainment by rate, seed by seed, rates rising."""
    return [
        {
            f"{point.rate_rps:.3g}/s": round(point.attainment, 3)
            for point in sorted(curve, key=lambda point: point.rate_rps)
        }
        for curve in curves
    ]
