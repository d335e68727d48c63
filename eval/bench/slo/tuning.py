"""What the stock side may choose beforehand, on requests that are not scored: its flags, workload
by workload; and the load that each grid is laid around.

SGLang's defaults ─search─▶ rate ─▶ every candidate at a load just above it ─best─▶ its own search
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from bana.eval.bench.slo.points import PointSeen
from bana.eval.bench.slo.settings import PromiseSettings, SloSettings, SloWorkload
from bana.eval.capacity import RateBounds, find_max_rate, plan_next_rate

Args = tuple[str, ...]
# Offers a rate to a stock side with these flags.
Offer = Callable[[Args, float], PointSeen]


class Tuned(msgspec.Struct, frozen=True):
    """The flags that kept most promises, and the rate that they carry."""

    args: Args
    capacity_rps: float
    scores: dict[str, float]


def tune_stock(settings: SloSettings, offers: Mapping[str, Offer]) -> dict[str, Tuned]:
    """For each workload, by name, the best of the candidates and what it carries.

    One candidate after the other, each with all workloads, since each is a server to start.
    """
    workloads = {workload.name: workload for workload in settings.workloads}
    defaults = settings.candidates[0]
    carried_rps = {
        name: search_capacity(settings, workload, [], partial(offers[name], defaults))
        for name, workload in workloads.items()
    }
    seen: dict[str, list[PointSeen]] = {name: [] for name in workloads}
    for args in settings.candidates:
        for name in workloads:
            rate_rps = settings.tuning_load * carried_rps[name]
            seen[name].append(offers[name](args, rate_rps))
    return {
        name: _conclude(settings, workload, seen[name], offers[name])
        for name, workload in workloads.items()
    }


def _conclude(
    settings: SloSettings, workload: SloWorkload, seen: Sequence[PointSeen], offer: Offer
) -> Tuned:
    scores = [point.attainment for point in seen]
    best = choose_best(scores)
    args = settings.candidates[best]
    return Tuned(
        args=args,
        capacity_rps=search_capacity(settings, workload, [seen[best]], partial(offer, args)),
        scores=dict(zip(map(name_args, settings.candidates), scores, strict=True)),
    )


def choose_best(scores: Sequence[float]) -> int:
    """The place of the highest; of equal ones the first, which asks for least."""
    return max(range(len(scores)), key=lambda place: (scores[place], -place))


def search_capacity(
    settings: PromiseSettings,
    workload: SloWorkload,
    known: Sequence[PointSeen],
    offer: Callable[[float], PointSeen],
) -> float:
    """About what is carried: a grid is laid around it, so that a bound serves as well."""
    bounds = RateBounds(
        start_rps=workload.start_rps,
        min_rps=workload.min_rps,
        max_rps=workload.max_rps,
        tolerance=settings.search_tolerance,
        max_points=settings.search_points,
    )
    points = [point.load_point for point in known]
    target = settings.target_attainment
    while (rate_rps := plan_next_rate(points, target, bounds)) is not None:
        points.append(offer(rate_rps).load_point)
    found = find_max_rate(points, target).rps
    if found is not None:
        return found
    held = [point.offered_rps for point in points if point.attainment >= target]
    return max(held, default=min(point.offered_rps for point in points))


def name_args(args: Args) -> str:
    """Flags as a reader knows them."""
    return " ".join(args) or "defaults"
