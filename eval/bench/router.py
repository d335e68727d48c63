"""What the front door costs: time added to a request, and the rate it sustains.

client ──▶ bana's front door │ sglang-router │ nothing ──▶ null upstreams
streams held open, and short requests in open loop
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bana.eval.bench.children import confined
from bana.eval.bench.harness import Bench, Session
from bana.eval.bench.pairs import (
    Pair,
    PairPlan,
    Run,
    figure_difference,
    figure_level,
    figure_range,
    figure_ratio,
)
from bana.eval.bench.placement import plan_router_placement
from bana.eval.bench.router_points import RouterJob, measure_first_byte, search_rate
from bana.eval.bench.router_settings import SCALES, describe_router_settings
from bana.eval.bench.routers import Side, Stage, null_upstreams
from bana.eval.bench.trials import Values
from bana.slo.figures import Aim, Better, Figure

ADDED_AIM = Aim(2.0, Better.LOWER)
RATE_AIM = Aim(500.0)


class _Taken(msgspec.Struct, frozen=True):
    """All trials of a run."""

    added: list[Pair]
    other_added: list[Pair]
    rates: list[Pair]
    ceiling: list[Values]


def measure_router(session: Session) -> dict[str, Figure]:
    """All figures of this benchmark."""
    settings = SCALES[session.request.scale]
    placement = plan_router_placement()
    with tempfile.TemporaryDirectory(prefix="bb-") as name, confined(placement.client):
        folder = Path(name)
        rate = settings.streams.chunks_per_s
        with null_upstreams(settings.upstreams, rate, placement, folder) as upstreams:
            stage = Stage(
                placement=placement,
                folder=folder,
                bana_policy=settings.bana_policy,
                sglang_router_policy=settings.sglang_router_policy,
                upstreams=upstreams,
            )
            taken = _take(RouterJob(session, settings, stage))
    seed = session.request.seed
    session.notes.update(describe_bounds(taken.rates))
    return _judge_bana(taken, seed) | _judge_others(taken, seed)


def _take(job: RouterJob) -> _Taken:
    return _Taken(
        ceiling=[_take_ceiling(job, index) for index in range(job.settings.ceiling_runs)],
        added=_take_added(job, Side.BANA, job.settings.added_pairs),
        other_added=_take_added(job, Side.SGLANG_ROUTER, job.settings.other_added_pairs),
        rates=job.session.run_pairs(
            PairPlan("rate", Side.BANA, Side.SGLANG_ROUTER, job.settings.search_pairs),
            lambda run: search_rate(job, run),
        ),
    )


def _take_added(job: RouterJob, side: Side, pairs: int) -> list[Pair]:
    if pairs == 0:
        return []
    plan = PairPlan(f"first byte, {side}", side, Side.DIRECT, pairs)
    return job.session.run_pairs(plan, lambda run: measure_first_byte(job, run))


def _take_ceiling(job: RouterJob, index: int) -> Values:
    """What client and upstreams sustain with nothing between them."""
    name = f"rate without a router {index + 1}/{job.settings.ceiling_runs}"
    return job.session.run_trial(name, lambda: search_rate(job, Run(index, Side.DIRECT)))


def describe_bounds(rates: Sequence[Pair]) -> dict[str, str]:
    """Which rates are only bounds, because client, upstreams or range ended the search.

    A ratio whose denominator is at least so much is at most so much.
    """
    found = {}
    for name, trials in (
        ("router_max_rps_is_a_lower_bound", [pair.first for pair in rates]),
        ("sglang_router_max_rps_is_a_lower_bound", [pair.second for pair in rates]),
        ("router_rps_vs_sglang_router_is_an_upper_bound", [pair.second for pair in rates]),
    ):
        bounds = sum(values["is_not_limited_by_router"] for values in trials)
        if bounds:
            found[name] = f"in {bounds:.0f} of {len(trials)} searches"
    return found


def _judge_bana(taken: _Taken, seed: int) -> dict[str, Figure]:
    searches = [pair.first for pair in taken.rates]
    through = [*searches, *(pair.first for pair in taken.added)]
    delivered = [values["chunks_got"] / values["chunks_asked"] for values in through]
    lost = [values["chunks_asked"] - values["chunks_got"] for values in through]
    return {
        "router_added_p50_ms": figure_difference(
            taken.added, "first_byte_p50_ms", seed, "ms", ADDED_AIM
        ),
        "router_max_rps": figure_level(_pick(searches, "max_rps"), seed, "requests/s", RATE_AIM),
        "router_rps_vs_sglang_router": figure_ratio(taken.rates, "max_rps", seed, None),
        "router_delivered_share": figure_range(delivered, "share"),
        "router_lost_chunks": figure_range(lost, "chunks"),
        "router_unloaded_p99_ms": figure_level(_pick(searches, "unloaded_p99_ms"), seed, "ms"),
    }


def _judge_others(taken: _Taken, seed: int) -> dict[str, Figure]:
    other = [pair.second for pair in taken.rates]
    searches = [*other, *(pair.first for pair in taken.rates)]
    added = [*taken.added, *taken.other_added]
    points = [values for pair in added for values in (pair.first, pair.second)]
    return _judge_other_added(taken.other_added, seed) | {
        "sglang_router_max_rps": figure_level(_pick(other, "max_rps"), seed, "requests/s"),
        "sglang_router_unloaded_p99_ms": figure_level(_pick(other, "unloaded_p99_ms"), seed, "ms"),
        "direct_max_rps": figure_level(_pick(taken.ceiling, "max_rps"), seed, "requests/s"),
        "client_lateness_p99_ms": figure_range(_pick(points, "client_lateness_p99_ms"), "ms"),
        "searches_not_limited_by_router": figure_range(
            _pick(searches, "is_not_limited_by_router"), "share"
        ),
    }


def _judge_other_added(pairs: Sequence[Pair], seed: int) -> dict[str, Figure]:
    if not pairs:
        return {}
    figure = figure_difference(pairs, "first_byte_p50_ms", seed, "ms", None)
    return {"sglang_router_added_p50_ms": figure}


def _pick(trials: Sequence[Values], metric: str) -> list[float]:
    return [values[metric] for values in trials]


ROUTER = Bench(
    help="the front door: time added to the first byte, requests/s held, beside sglang-router",
    settings=describe_router_settings,
    measure=measure_router,
)
