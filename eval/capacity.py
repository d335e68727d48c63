"""The highest rate at which a target attainment is kept, and which rate to offer next.

attainment
  target ┼──●──●╌╌╌╌╌╌╌╌╌╌╌╌╌ the first crossing counts: every rate below it was held
         │      ╲    ○ held again: noise, and said so
         └───────●─────────── offered rate
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from bana.eval.sentence import tell_number, tell_rate, tell_share
from bana.eval.summary import LoadPoint, MaxRate, Summary
from bana.slo.errors import ConfigError

# A live p99 TTFT may be so many times the median TTFT of a request that is alone.
LIVE_P99_FACTOR = 40.0


class RateBounds(msgspec.Struct, frozen=True):
    """Where a search looks: it begins at `start_rps` and ends when its bracket's ends are within
    the factor `tolerance`, or after `max_points`."""

    start_rps: float
    min_rps: float
    max_rps: float
    tolerance: float = 1.1
    max_points: int = 12
    p99_limit_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.min_rps <= self.start_rps <= self.max_rps < math.inf:
            raise ConfigError(f"{self}: allowed are 0 < min_rps <= start_rps <= max_rps")
        if not self.tolerance > 1 or self.max_points < 1:
            raise ConfigError(f"{self}: allowed are tolerance > 1 and max_points >= 1")


class _Goal(msgspec.Struct, frozen=True):
    """What a point must keep to be held."""

    target: float
    p99_limit_s: float | None

    def is_held(self, point: LoadPoint) -> bool:
        if point.attainment < self.target or self.p99_limit_s is None:
            return point.attainment >= self.target
        return point.p99_ttft_s is not None and point.p99_ttft_s <= self.p99_limit_s


class _Bracket(msgspec.Struct, frozen=True):
    """The highest rate below which all were held, the one above it, and what was held beyond."""

    held: LoadPoint | None
    exceeded: LoadPoint | None
    again: LoadPoint | None


def take_point(summary: Summary) -> LoadPoint:
    """What one run says about its rate."""
    ttft_s = summary.overall.latencies.ttft_s
    return LoadPoint(
        offered_rps=summary.offered_rps,
        attainment=summary.overall.attainment.value,
        p99_ttft_s=None if ttft_s is None else ttft_s.p99,
        is_valid=summary.validity.is_valid and not summary.is_interrupted,
    )


def find_max_rate(
    points: Sequence[LoadPoint], target: float, p99_limit_s: float | None = None
) -> MaxRate:
    """The rate at which attainment first falls below `target`, or p99 TTFT passes its limit.

    Linear between the two points around it; without a point on either side there is no answer.
    Of several crossings the lowest counts, since a server that missed at some rate does not hold
    a higher one. Points of one rate count as their mean attainment and worst p99.
    """
    _check_target(target)
    ordered = tuple(sorted(points, key=lambda p: (p.offered_rps, -p.attainment)))
    goal = _Goal(target, p99_limit_s)
    bracket = _find_bracket(_merge(ordered), goal)
    rps = None
    if bracket.held is not None and bracket.exceeded is not None:
        rps = _interpolate(bracket.held, bracket.exceeded, goal)
    reason = "; ".join([_tell_bracket(bracket, goal), *_tell_left_out(ordered)])
    return MaxRate(rps, target, ordered, reason)


def plan_next_rate(points: Sequence[LoadPoint], target: float, bounds: RateBounds) -> float | None:
    """The rate to offer next, None when the search is over.

    Doubles or halves until a held and an exceeded rate stand around the answer, then takes their
    geometric mean. A rate whose run was not valid is offered once more; then it is a ceiling.
    O(log(max/min) + log(1/(tolerance - 1))) points, at most `bounds.max_points`.
    """
    _check_target(target)
    if len(points) >= bounds.max_points:
        return None
    bracket = _find_bracket(_merge(points), _Goal(target, bounds.p99_limit_s))
    held_rps = None if bracket.held is None else bracket.held.offered_rps
    above_rps = _find_above_rps(points, bracket, bounds)
    if above_rps is None:
        return bounds.start_rps if held_rps is None else _plan_up(held_rps, bounds)
    if held_rps is None:
        return _plan_down(above_rps, bounds)
    is_narrow = above_rps <= held_rps * bounds.tolerance
    return None if is_narrow else math.sqrt(held_rps * above_rps)


def _check_target(target: float) -> None:
    if not 0 < target <= 1:
        raise ConfigError(f"target attainment {target:g}, allowed: above 0, at most 1")


def _merge(points: Sequence[LoadPoint]) -> list[LoadPoint]:
    """One point a rate, rates rising, from the valid ones."""
    by_rate: dict[float, list[LoadPoint]] = {}
    for point in points:
        if point.is_valid:
            by_rate.setdefault(point.offered_rps, []).append(point)
    return [_merge_rate(by_rate[rate]) for rate in sorted(by_rate)]


def _merge_rate(points: Sequence[LoadPoint]) -> LoadPoint:
    attainment = math.fsum(p.attainment for p in points) / len(points)
    p99s_s = [p.p99_ttft_s for p in points if p.p99_ttft_s is not None]
    # A run in which nobody had a first token is the worst of them.
    p99_s = max(p99s_s) if len(p99s_s) == len(points) else None
    return LoadPoint(points[0].offered_rps, attainment, p99_s)


def _find_bracket(merged: Sequence[LoadPoint], goal: _Goal) -> _Bracket:
    place = next((i for i, p in enumerate(merged) if not goal.is_held(p)), len(merged))
    beyond = merged[place:]
    return _Bracket(
        held=merged[place - 1] if place > 0 else None,
        exceeded=beyond[0] if beyond else None,
        again=next((p for p in reversed(beyond) if goal.is_held(p)), None),
    )


def _interpolate(held: LoadPoint, exceeded: LoadPoint, goal: _Goal) -> float:
    shares = [1.0]
    if exceeded.attainment < goal.target:
        fall = held.attainment - exceeded.attainment
        shares.append((held.attainment - goal.target) / fall)
    if goal.p99_limit_s is not None and held.p99_ttft_s is not None:
        if exceeded.p99_ttft_s is None:
            shares.append(0.0)
        elif exceeded.p99_ttft_s > goal.p99_limit_s:
            rise_s = exceeded.p99_ttft_s - held.p99_ttft_s
            shares.append((goal.p99_limit_s - held.p99_ttft_s) / rise_s)
    gap_rps = exceeded.offered_rps - held.offered_rps
    return held.offered_rps + gap_rps * min(shares)


def _tell_bracket(bracket: _Bracket, goal: _Goal) -> str:
    held, exceeded, again = bracket.held, bracket.exceeded, bracket.again
    if held is None and exceeded is None:
        return "has no valid point: offer some rates"
    noise = "" if again is None else f"; held again at {tell_rate(again.offered_rps)}, as noise"
    if exceeded is None and held is not None:
        return f"attains {_tell_point(held, goal)}, the highest rate offered: offer more"
    if held is None and exceeded is not None:
        return f"attains {_tell_point(exceeded, goal)}, the lowest rate offered: offer less{noise}"
    said = " and ".join(_tell_point(p, goal) for p in (held, exceeded) if p is not None)
    return f"attains {said}{noise}"


def _tell_point(point: LoadPoint, goal: _Goal) -> str:
    said = f"{tell_share(point.attainment)} at {tell_rate(point.offered_rps)}"
    if goal.p99_limit_s is None:
        return said
    p99 = f"{tell_number(point.p99_ttft_s)} s" if point.p99_ttft_s is not None else "unknown"
    return f"{said} with p99 TTFT {p99} (limit {tell_number(goal.p99_limit_s)} s)"


def _tell_left_out(points: Sequence[LoadPoint]) -> list[str]:
    rates = sorted({p.offered_rps for p in points if not p.is_valid})
    return [f"left out as not valid: {', '.join(map(tell_rate, rates))}"] if rates else []


def _find_above_rps(
    points: Sequence[LoadPoint], bracket: _Bracket, bounds: RateBounds
) -> float | None:
    """The lowest rate known to be too high, for the server or for the client twice."""
    failed = sorted(p.offered_rps for p in points if not p.is_valid)
    twice = [low for low, high in pairwise(failed) if high <= low * bounds.tolerance]
    held_rps = 0.0 if bracket.held is None else bracket.held.offered_rps
    above = [rate for rate in twice if rate > held_rps]
    if bracket.exceeded is not None:
        above.append(bracket.exceeded.offered_rps)
    return min(above, default=None)


def _plan_up(held_rps: float, bounds: RateBounds) -> float | None:
    # What was offered differs a little from what was planned.
    if held_rps * bounds.tolerance >= bounds.max_rps:
        return None
    return min(held_rps * 2, bounds.max_rps)


def _plan_down(above_rps: float, bounds: RateBounds) -> float | None:
    if above_rps <= bounds.min_rps * bounds.tolerance:
        return None
    return max(above_rps / 2, bounds.min_rps)
