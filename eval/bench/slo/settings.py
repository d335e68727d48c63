"""How much the slo benchmark measures at each scale, and about how long that takes."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from bana.eval.bench.fixture import FIXTURE
from bana.eval.bench.harness import Scale
from bana.eval.bench.placement import plan_router_placement
from bana.eval.bench.slo.grid import Grid
from bana.eval.bench.slo.workloads import (
    CONVERSATION_TRACE,
    Length,
    Shape,
    find_trace,
    name_source,
)

BUDGET = "budget"
# The stock order whose chunks are tuned; the other stock orders get the same chunks.
TUNED = "fcfs"
BUDGET_POLICIES = ("scheduling.order=budget", "scheduling.governor=tpot")
# Seconds on a slow machine of two cores: a start, and what a point takes beside its arrivals.
START_S = 55.0
AROUND_POINT_S = 6.0
ISOLATED_S = 35.0
WARM_UP_S = 10.0


class SloWorkload(msgspec.Struct, frozen=True):
    """One workload, where the search of its capacity looks, and its loads over that capacity."""

    name: str
    shape: Shape
    start_rps: float
    min_rps: float
    max_rps: float
    grid: Grid


class PromiseSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One scale of a benchmark that offers promised requests to instances, point by point.

    Each point offers `requests`, after `warmup_requests` that do not count. Each server has
    `pool_tokens` of KV, and takes about `side_bytes` of memory in all.
    """

    workloads: tuple[SloWorkload, ...]
    stock_orders: tuple[str, ...]
    seeds: int
    requests: int
    warmup_requests: int
    search_points: int
    search_tolerance: float = 1.3
    target_attainment: float = 0.9
    model: str = "smollm2"
    budget_args: tuple[str, ...] = ()
    pool_tokens: int = 16_384
    side_bytes: int = 3_600_000_000
    first_token_id: int = 1_000
    last_token_id: int = 40_000
    max_input_tokens: int = 4_096
    drain_s: float = 30.0
    lateness_limit_ms: float = 100.0
    start_timeout_s: float = 600.0


class SloSettings(PromiseSettings, frozen=True, kw_only=True):
    """One scale of this benchmark.

    `candidates` are the flags of SGLang among which the stock side's are chosen, at `tuning_load`
    times what its defaults carry. `stock_orders` are SGLang's --schedule-policy. At `light_load`
    times the capacity `light_requests` are offered to the budget side and the tuned one.
    """

    candidates: tuple[tuple[str, ...], ...]
    light_requests: int
    tuning_load: float = 1.15
    light_load: float = 0.3
    p99_factor: float = 40.0


# Mean and p99 as in the trace that CONVERSATION_TRACE names.
CONVERSATION = Shape(
    input_tokens=Length(1155.0, 4142.0),
    output_tokens=Length(211.0, 601.0),
    cv=1.09,
    length_scale=0.1,
    trace=CONVERSATION_TRACE,
)
# Code completion in bursts of some CV^2 requests, whatever the rate. Ten times the time of one
# prompt has room for seven or eight of them here: with a CV of 3.6 (squared, 13) a tenth is lost at
# any rate under any order, and with one of 13 nearly all.
BURSTY = Shape(
    input_tokens=Length(2048.0, 12_720.0),
    output_tokens=Length(28.0, 131.0),
    cv=2.5,
    length_scale=0.08,
)
CANDIDATES = (
    (),
    ("--chunked-prefill-size", "128"),
    ("--chunked-prefill-size", "256"),
    ("--chunked-prefill-size", "128", "--enable-mixed-chunk"),
    ("--chunked-prefill-size", "256", "--prefill-decode-interval", "2"),
)
DEFAULT = SloSettings(
    workloads=(
        SloWorkload(
            "conversation",
            CONVERSATION,
            start_rps=1.2,
            min_rps=0.3,
            max_rps=4.8,
            grid=Grid((0.75, 1.0, 1.33, 1.8, 2.4), more_above=4),
        ),
        # In bursts fcfs carries next to nothing: the time is spent where other orders break.
        SloWorkload(
            "bursty",
            BURSTY,
            start_rps=0.75,
            min_rps=0.75,
            max_rps=4.0,
            grid=Grid((1.0, 1.4, 1.9, 2.6, 3.6), give_up=0.5, more_below=0, more_above=4),
        ),
    ),
    candidates=CANDIDATES,
    stock_orders=("fcfs", "lpm", "hrrn", "shortest-prefill-first"),
    seeds=3,
    requests=40,
    warmup_requests=3,
    light_requests=20,
    search_points=3,
)
# A load that the small fixture carries on any machine.
QUICK_GRID = Grid((0.5, 1.0), more_below=0, more_above=0)
QUICK_CONVERSATION = SloWorkload("conversation", CONVERSATION, 8.0, 8.0, 8.0, QUICK_GRID)
QUICK = SloSettings(
    workloads=(
        QUICK_CONVERSATION,
        SloWorkload("bursty", BURSTY, 8.0, 8.0, 8.0, QUICK_GRID),
    ),
    candidates=((),),
    stock_orders=(TUNED,),
    seeds=1,
    requests=12,
    warmup_requests=2,
    light_requests=6,
    search_points=1,
    model=FIXTURE,
    side_bytes=2_500_000_000,
    first_token_id=100,
    last_token_id=700,
    max_input_tokens=512,
    drain_s=10.0,
    # A smoke runs beside anything; it is to end, not to judge.
    lateness_limit_ms=60_000.0,
)
FULL = msgspec.structs.replace(DEFAULT, seeds=5, requests=120, light_requests=32, search_points=5)
SCALES = {Scale.QUICK: QUICK, Scale.DEFAULT: DEFAULT, Scale.FULL: FULL}


def estimate_minutes(settings: SloSettings) -> float:
    """About how long a run takes where the capacity is the rate at which its search begins.

    Assumes that stock sides are offered three loads of the grid and the budget side all, and that
    the tuned flags differ from workload to workload.
    """
    stocks = len(settings.stock_orders)
    starts = len(settings.candidates) + len(settings.workloads) * (1 + stocks) + 1
    seconds = starts * (START_S + WARM_UP_S)
    for workload in settings.workloads:
        grid = workload.grid.multiples
        seconds += ISOLATED_S
        searched = (2 * settings.search_points - 1) * _time_point_s(settings, workload, 1.0)
        tuned = len(settings.candidates) * _time_point_s(settings, workload, settings.tuning_load)
        scored = sum(_time_point_s(settings, workload, multiple) for multiple in grid)
        scored += stocks * sum(_time_point_s(settings, workload, m) for m in grid[:3])
        light_s = settings.light_requests / (settings.light_load * workload.start_rps)
        scored += 2 * (light_s + AROUND_POINT_S)
        seconds += searched + tuned + settings.seeds * scored
    return seconds / 60


def _time_point_s(settings: SloSettings, workload: SloWorkload, multiple: float) -> float:
    return settings.requests / (multiple * workload.start_rps) + AROUND_POINT_S


def describe_slo_settings(scale: Scale) -> Mapping[str, object]:
    """The settings as they stand in the report."""
    settings = SCALES[scale]
    described: dict[str, object] = msgspec.to_builtins(settings)
    return described | {
        "sources": {
            w.name: name_source(w.shape, find_trace(w.shape, os.environ))
            for w in settings.workloads
        },
        "placement": plan_router_placement().describe(),
        "promise": "10x the isolated TTFT of the prompt's length, 5x the isolated TPOT; measured "
        "once on the first idle server, the same milliseconds for all sides",
        "budget": "bana's scheduler and policies, addressed through its front door, no flag of "
        "SGLang tuned",
        "stock": "SGLang's scheduler, same platform, addressed directly, with the tuned flags",
        "order": "all sides are up, the idle ones asleep; within each seed and load they take "
        "turns, in an order that is turned round from one load to the next",
        "prompts": "random token ids, others at each rate and seed, the same for all sides; caches "
        "flushed before each point",
        "stops": "a side that attained less than grid.give_up is offered no higher load of a seed",
    }
