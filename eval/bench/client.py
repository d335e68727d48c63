"""What the load generator sustains by itself: its own lateness against a server that costs nothing.

client, on a core of its own ──▶ null server, on another
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from bana.eval.bench.children import confined
from bana.eval.bench.client_load import ClientPoint, PointSeen, run_client_point
from bana.eval.bench.errors import BenchError
from bana.eval.bench.harness import Bench, Scale, Session
from bana.eval.bench.load import Streams
from bana.eval.bench.pairs import figure_level, figure_range
from bana.eval.bench.placement import Placement, plan_router_placement
from bana.eval.bench.routers import null_upstreams
from bana.eval.bench.search import SearchPlan, Verdict, search_capacity
from bana.eval.bench.trials import Values
from bana.eval.client.target import Target
from bana.slo.figures import Aim, Better, Figure

RATE_AIM = Aim(2_000.0)
LAG_AIM = Aim(5.0, Better.LOWER)
# A client that so many seconds of requests wait for has lost the point.
MOST_OUT_S = 1.0


class ClientSettings(msgspec.Struct, frozen=True):
    """One scale. A rate is held with p99 lateness <= `lateness_limit_ms` and nothing lost."""

    streams: Streams
    search: SearchPlan
    window_s: float
    lag_runs: int
    search_runs: int
    lag_rate_rps: float = 2_000.0
    lateness_limit_ms: float = 5.0
    prompt_tokens: int = 32


QUICK = ClientSettings(
    streams=Streams(count=40, chunks_per_s=2.0, opened_per_s=100.0),
    search=SearchPlan(start_rps=200, min_rps=5, max_rps=400, tolerance=2.0, trials=1),
    window_s=1.0,
    lag_runs=1,
    search_runs=1,
    # A smoke runs beside anything; it is to end, not to judge.
    lateness_limit_ms=100.0,
)
DEFAULT = ClientSettings(
    streams=Streams(count=1000, chunks_per_s=2.0, opened_per_s=400.0),
    search=SearchPlan(start_rps=2_000, min_rps=50, max_rps=16_000, tolerance=1.1, trials=3),
    window_s=5.0,
    lag_runs=10,
    search_runs=5,
)
FULL = msgspec.structs.replace(
    DEFAULT,
    window_s=10.0,
    search=msgspec.structs.replace(DEFAULT.search, tolerance=1.05),
    lag_runs=20,
    search_runs=10,
)

SCALES = {Scale.QUICK: QUICK, Scale.DEFAULT: DEFAULT, Scale.FULL: FULL}


class ClientJob(msgspec.Struct, frozen=True):
    """What every measurement of a run shares."""

    session: Session
    settings: ClientSettings
    target: Target

    def take(self, rate_rps: float, index: int, trial: int = 0) -> PointSeen:
        """Run one point; other arrivals for each index and trial."""
        settings = self.settings
        seed = self.session.seed_of(index) * settings.search.trials + trial
        point = ClientPoint(
            rate_rps, settings.window_s, settings.streams, settings.prompt_tokens, seed
        )
        return run_client_point(self.target, point, int(rate_rps * MOST_OUT_S))


def measure_client(session: Session) -> dict[str, Figure]:
    """All figures of this benchmark."""
    settings = SCALES[session.request.scale]
    placement = plan_client_placement()
    with tempfile.TemporaryDirectory(prefix="bb-") as name, confined(placement.client):
        rate = settings.streams.chunks_per_s
        with null_upstreams(1, rate, placement, Path(name)) as (target,):
            job = ClientJob(session, settings, target)
            lags = [_take_lag(job, index) for index in range(settings.lag_runs)]
            rates = [_take_rate(job, index) for index in range(settings.search_runs)]
    return _judge(lags, rates, session.request.seed)


def plan_client_placement() -> Placement:
    """The null server has the first core, the client the last."""
    plan = plan_router_placement()
    return Placement(server=plan.server, upstream=plan.server, client=plan.client)


def _take_lag(job: ClientJob, index: int) -> Values:
    """Lateness at the rate of the aim."""
    rate_rps = job.settings.lag_rate_rps
    name = f"lag at {rate_rps:.0f}/s {index + 1}/{job.settings.lag_runs}"

    def measure() -> Values:
        seen = job.take(rate_rps, index)
        if seen.lost == seen.offered:
            raise BenchError(f"every request was lost (first: {seen.first_error})")
        return {
            "lateness_p50_ms": seen.lateness_p50_s * 1e3,
            "lateness_p99_ms": seen.lateness_p99_s * 1e3,
            "ttft_p50_ms": seen.ttft_p50_s * 1e3,
            "lost": float(seen.lost),
        }

    return job.session.run_trial(name, measure)


def _take_rate(job: ClientJob, index: int) -> Values:
    """The highest rate held."""

    def probe(rate_rps: float, trial: int) -> Verdict:
        seen = job.take(rate_rps, index, trial)
        verdict = judge_seen(seen, job.settings.lateness_limit_ms / 1e3)
        first = f" (first: {seen.first_error})" if seen.first_error else ""
        job.session.say(
            f"  {rate_rps:.0f}/s: {verdict.value}, late by {seen.lateness_p99_s * 1e3:.2f} ms, "
            f"{seen.lost} of {seen.offered} lost{first}"
        )
        return verdict

    def measure() -> Values:
        capacity = search_capacity(probe, job.settings.search)
        return {
            "max_rps": capacity.held_rps,
            "is_range_end": float(capacity.limit is Verdict.HELD),
        }

    return job.session.run_trial(f"rate {index + 1}/{job.settings.search_runs}", measure)


def judge_seen(seen: PointSeen, limit_s: float) -> Verdict:
    """Whether the client held the point."""
    is_held = seen.lost == 0 and seen.lateness_p99_s <= limit_s
    return Verdict.HELD if is_held else Verdict.EXCEEDED


def _judge(lags: list[Values], rates: list[Values], seed: int) -> dict[str, Figure]:
    def level(trials: list[Values], metric: str, unit: str, aim: Aim | None = None) -> Figure:
        return figure_level([values[metric] for values in trials], seed, unit, aim)

    return {
        "client_rps": level(rates, "max_rps", "requests/s", RATE_AIM),
        "client_lag_p99_ms": level(lags, "lateness_p99_ms", "ms", LAG_AIM),
        "client_lag_p50_ms": level(lags, "lateness_p50_ms", "ms"),
        "client_ttft_p50_ms": level(lags, "ttft_p50_ms", "ms"),
        "client_lost": figure_range([values["lost"] for values in lags], "requests"),
        "client_rps_range_ended": figure_range([v["is_range_end"] for v in rates], "share"),
    }


def describe_client_settings(scale: Scale) -> Mapping[str, object]:
    """The settings as they stand in the report."""
    described: dict[str, object] = msgspec.to_builtins(SCALES[scale])
    return described | {
        "placement": plan_client_placement().describe(),
        "endpoint": "generate, streamed, one token a short request",
        "lateness": "send after the schedule, of the short requests, while the streams run",
    }


CLIENT = Bench(
    help="the load generator alone: requests/s held and lateness, against a null server",
    settings=describe_client_settings,
    measure=measure_client,
)
