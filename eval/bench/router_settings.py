"""How much the router benchmark measures at each scale."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bana.eval.bench.harness import Scale
from bana.eval.bench.load import Streams
from bana.eval.bench.placement import plan_router_placement
from bana.eval.bench.search import SearchPlan


class RouterSettings(msgspec.Struct, frozen=True):
    """One scale. A point that fails while the client's p99 lateness exceeds `client_late_share`
    of the p99 limit is not blamed on the router.

    `bana_policy` is what users get; the other router runs its cheapest policy.
    """

    upstreams: int
    streams: Streams
    search: SearchPlan
    window_s: float
    added_pairs: int
    added_rate_rps: float
    other_added_pairs: int
    search_pairs: int
    ceiling_runs: int
    unloaded_rate_rps: float = 50.0
    unloaded_window_s: float = 8.0
    p99_factor: float = 10.0
    client_late_share: float = 0.25
    bana_policy: str = "least_load"
    sglang_router_policy: str = "round_robin"


QUICK = RouterSettings(
    upstreams=2,
    streams=Streams(count=40, chunks_per_s=2.0, opened_per_s=100.0),
    search=SearchPlan(start_rps=100, min_rps=5, max_rps=200, tolerance=2.0, trials=1),
    window_s=1.0,
    added_pairs=1,
    added_rate_rps=50.0,
    other_added_pairs=0,
    search_pairs=1,
    ceiling_runs=1,
    unloaded_window_s=1.0,
)
DEFAULT = RouterSettings(
    upstreams=2,
    streams=Streams(count=1000, chunks_per_s=2.0, opened_per_s=400.0),
    search=SearchPlan(start_rps=500, min_rps=15, max_rps=16_000, tolerance=1.1, trials=3),
    window_s=5.0,
    added_pairs=10,
    added_rate_rps=100.0,
    other_added_pairs=5,
    search_pairs=5,
    ceiling_runs=1,
)
FULL = msgspec.structs.replace(
    DEFAULT,
    window_s=10.0,
    search=msgspec.structs.replace(DEFAULT.search, tolerance=1.05),
    added_pairs=20,
    other_added_pairs=10,
    search_pairs=10,
)

SCALES = {Scale.QUICK: QUICK, Scale.DEFAULT: DEFAULT, Scale.FULL: FULL}


def describe_router_settings(scale: Scale) -> Mapping[str, object]:
    """The settings as they stand in the report."""
    described: dict[str, object] = msgspec.to_builtins(SCALES[scale])
    return described | {
        "placement": plan_router_placement().describe(),
        "first_byte": "of short requests, from their send, while the streams run",
        "p99": "of short requests, from their scheduled time, failures as infinite",
        "search_verdicts": "median of the trials of a point, held < client_late < exceeded",
        "unloaded": "p99 of short requests alone, same router; the median of as many trials",
        "sglang_router_log_level": "warn",
    }
