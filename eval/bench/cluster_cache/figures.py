"""From points to figures: bana with its store beside instances with caches of their own."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from bana.eval.bench.cluster_cache.points import BALANCE, CACHED, RATE, TTFT
from bana.eval.bench.cluster_cache.settings import (
    CACHE_AWARE,
    CACHE_AWARE_WITH_STORE,
    NO_STORE,
    OURS,
    ROUND_ROBIN,
)
from bana.eval.bench.cluster_cache.workloads import Shared
from bana.eval.bench.trials import Values
from bana.slo.figures import Aim, Better, Figure, judge_figure
from bana.slo.stats import bootstrap_paired

ROUND_ROBIN_AIM = Aim(0.7, Better.LOWER)
HOT_AIM = Aim(0.9, Better.LOWER)
LITTLE_AIM = Aim(1.02, Better.LOWER)

Taken = Mapping[str, Sequence[Values]]


class Case(msgspec.Struct, frozen=True):
    """A workload at a CV, and what each side gave, seed by seed in the same order."""

    shared: Shared
    cv: float
    taken: Taken

    @property
    def row(self) -> str:
        """What tells its figures from those of others."""
        return f"{self.shared},cv{self.cv:g}"

    def mean(self, side: str, metric: str) -> float:
        """Over its seeds."""
        return statistics.fmean(values[metric] for values in self.taken[side])


def list_case(case: Case, seed: int) -> Iterator[tuple[str, Figure]]:
    """The figures of one workload at one CV, for each of our routings."""
    for side in OURS:
        ours, row = side.name, f"{case.row},{side.name}"
        if case.shared is Shared.LITTLE:
            figure = _compare(case.taken, ours, NO_STORE.name, TTFT, LITTLE_AIM, seed)
            yield f"low_sharing_ttft_vs_no_store[cv{case.cv:g},{ours}]", figure
            continue
        hot = HOT_AIM if case.shared is Shared.HOT else None
        for name, other, metric, aim in (
            ("ttft_vs_round_robin", ROUND_ROBIN, TTFT, ROUND_ROBIN_AIM),
            ("ttft_vs_cache_aware", CACHE_AWARE, TTFT, hot),
            ("ttft_vs_cache_aware_with_store", CACHE_AWARE_WITH_STORE, TTFT, None),
            ("balance_vs_cache_aware", CACHE_AWARE, BALANCE, None),
        ):
            yield f"{name}[{row}]", _compare(case.taken, ours, other.name, metric, aim, seed)


def list_saturated(shared: Shared, taken: Taken, seed: int) -> Iterator[tuple[str, Figure]]:
    """Requests a second of rounds that never wait for a schedule."""
    for side in OURS:
        figure = _compare(taken, side.name, CACHE_AWARE.name, RATE, None, seed)
        yield f"throughput_vs_cache_aware[{shared},{side.name}]", figure


def describe_case(case: Case) -> dict[str, object]:
    """What each side did, over the seeds: for whoever wonders where a ratio comes from."""
    return {
        side: {
            "ttft_mean_ms": round(case.mean(side, TTFT) * 1e3, 1),
            "cached_share": round(case.mean(side, CACHED), 3),
            "max_over_mean": round(case.mean(side, BALANCE), 3),
        }
        for side in case.taken
    }


def find_better_routing(cases: Sequence[Case]) -> tuple[str, float]:
    """The routing with the lesser geometric mean of TTFTs, and the other's over it."""
    means = {
        side.name: statistics.geometric_mean(case.mean(side.name, TTFT) for case in cases)
        for side in OURS
    }
    best = min(means, key=lambda name: means[name])
    return best, max(means.values()) / means[best]


def _compare(
    taken: Taken, ours: str, other: str, metric: str, aim: Aim | None, seed: int
) -> Figure:
    above, below = ([values[metric] for values in taken[side]] for side in (ours, other))
    interval = bootstrap_paired(above, below, seed)
    return judge_figure(interval.value, interval.low, interval.high, "ratio", aim)
