"""How much the cluster_cache benchmark measures at each scale, and about how long that takes."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from bana.eval.bench.cluster_cache.workloads import (
    WORKLOADS,
    Contents,
    Shared,
    name_source,
)
from bana.eval.bench.fixture import FIXTURE
from bana.eval.bench.harness import Scale

INSTANCES = 2
PRIVATE, STORE, PREDICTED = "private", "store", "predicted"
# SGLang's router at its own threshold, and at one that two small instances can reach.
THRESHOLDS = (64, 2)
MIB = 2**20
# Seconds on a slow machine of two cores: a start of two instances, and what a point takes beside
# its arrivals.
START_S = 90.0
AROUND_POINT_S = 12.0
REQUESTS_PER_S = 0.8


class CacheSide(msgspec.Struct, frozen=True):
    """One way to share prefixes: whose instances, reached through bana's front door, or through
    SGLang's router where `router_policy` names one of its policies.
    """

    name: str
    cluster: str
    router_policy: str = ""


NO_STORE = CacheSide("no_store", PRIVATE)
ROUND_ROBIN = CacheSide("round_robin", PRIVATE, "round_robin")
CACHE_AWARE = CacheSide("cache_aware", PRIVATE, "cache_aware")
CACHE_AWARE_WITH_STORE = CacheSide("cache_aware_with_store", STORE, "cache_aware")
LEAST_LOAD = CacheSide("least_load", STORE)
PREDICTED_FINISH = CacheSide("predicted_finish", PREDICTED)
# bana with its store: which routing is the better one is what the benchmark asks, too.
OURS = (LEAST_LOAD, PREDICTED_FINISH)
SHARING_SIDES = (*OURS, ROUND_ROBIN, CACHE_AWARE, CACHE_AWARE_WITH_STORE)
LITTLE_SIDES = (*OURS, NO_STORE)
SATURATED_SIDES = (*OURS, CACHE_AWARE)


class ClusterCacheSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One scale. Every workload is offered at every CV of `cvs`, with `seeds` draws each.

    A point offers about `requests`, after `warmup_requests` that do not count, at `load` times what
    the instances would answer if they computed every prompt. A saturated round has as many,
    `concurrency` at a time. A hand-off is timed in `handoff_pairs` of `handoff_prompts`.
    Each instance has `pool_tokens` of KV, and takes about `instance_bytes` of memory in all.
    """

    seeds: int
    requests: int
    warmup_requests: int
    handoff_pairs: int
    handoff_prompts: int
    contents: Contents = Contents()
    cvs: tuple[float, ...] = (1.0, 4.0)
    shared: tuple[Shared, ...] = WORKLOADS
    load: float = 0.7
    timed_prompts: int = 5
    concurrency: int = 8
    handoff_tokens: int = 384
    pool_tokens: int = 4_096
    page_tokens: int = 16
    arena_bytes: int = 512 * MIB
    instance_bytes: int = 3_600_000_000
    model: str = "smollm2"
    sample_interval_s: float = 0.5
    drain_s: float = 120.0
    lateness_limit_ms: float = 100.0
    round_timeout_s: float = 600.0
    settle_timeout_s: float = 120.0
    start_timeout_s: float = 600.0


DEFAULT = ClusterCacheSettings(
    seeds=3, requests=20, warmup_requests=4, handoff_pairs=7, handoff_prompts=4
)
QUICK = ClusterCacheSettings(
    seeds=1,
    requests=8,
    warmup_requests=2,
    handoff_pairs=1,
    handoff_prompts=2,
    contents=Contents(documents=4, low_id=100, high_id=700),
    cvs=(1.0,),
    shared=(Shared.HOT, Shared.LITTLE),
    timed_prompts=2,
    instance_bytes=2_500_000_000,
    model=FIXTURE,
)
FULL = msgspec.structs.replace(DEFAULT, seeds=5, requests=48)
SCALES = {Scale.QUICK: QUICK, Scale.DEFAULT: DEFAULT, Scale.FULL: FULL}


def list_sides(shared: Shared) -> tuple[CacheSide, ...]:
    """Who is offered that workload."""
    return LITTLE_SIDES if shared is Shared.LITTLE else SHARING_SIDES


def estimate_minutes(settings: ClusterCacheSettings) -> float:
    """About how long a run takes on a slow machine of two cores."""
    point_s = (settings.requests + settings.warmup_requests) / REQUESTS_PER_S + AROUND_POINT_S
    points = 0
    for shared in settings.shared:
        sides = len(list_sides(shared))
        tuned = len(THRESHOLDS) if shared is not Shared.LITTLE else 0
        rounds = len(SATURATED_SIDES) if shared is not Shared.LITTLE else 0
        points += len(settings.cvs) * (settings.seeds * sides + tuned) + settings.seeds * rounds
    return (3 * START_S + points * point_s) / 60


def describe_cluster_cache_settings(scale: Scale) -> Mapping[str, object]:
    """The settings as they stand in the report."""
    settings = SCALES[scale]
    described: dict[str, object] = msgspec.to_builtins(settings)
    sources = {s.value: name_source(s, settings.contents, os.environ) for s in settings.shared}
    return described | {
        "sides": msgspec.to_builtins(SHARING_SIDES + LITTLE_SIDES[-1:]),
        "sources": sources,
        "draws": "a seed's requests are the same for all sides, at the same times",
        "placement": "two instances on a core each where there are two; client, routers and the "
        "store's daemon share them",
        "policies": "first come, first served in SGLang's chunks on all sides: what differs is who "
        "routes, and whether instances share a store",
        "caches": "flushed, the store cleared and SGLang's router started anew before each point",
        "cache_aware": f"SGLang's router, --balance-abs-threshold of {THRESHOLDS} chosen for each "
        "workload and CV on requests that are not scored",
    }
