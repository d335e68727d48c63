"""From mean TTFTs to figures: the planner beside fixed rules and no store, point by point."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from bana.eval.bench.errors import BenchError
from bana.eval.bench.restore.settings import (
    ALWAYS,
    FIXED,
    MEETING,
    NEVER,
    NO_STORE,
    PLANNED,
)
from bana.slo.figures import Aim, Better, Figure, judge_figure
from bana.slo.stats import Interval, bootstrap_paired

BEST_FIXED_AIM = Aim(0.97)
NO_STORE_AIM = Aim(1.02, Better.LOWER)


class SweepPoint(msgspec.Struct, frozen=True):
    """One load at one speed of the tier: the mean TTFT of each policy, repetition by repetition in
    the same order.
    """

    load: str
    speed: str
    ttft_s: Mapping[str, Sequence[float]]

    @property
    def row(self) -> str:
        """What tells its figures from those of others."""
        return f"{self.load},{self.speed}"

    @property
    def best_fixed(self) -> str:
        """The fixed rule with the least TTFT over all repetitions."""
        return min(FIXED, key=lambda name: statistics.fmean(self.ttft_s[name]))

    @property
    def floor_s(self) -> list[float]:
        """The TTFT, repetition by repetition, if computing and fetching shared each prompt in such
        parts that both took as long: T_comp T_io / (T_comp + T_io), of `never` and of `always`.
        """
        pairs = zip(self.ttft_s[NEVER], self.ttft_s[ALWAYS], strict=True)
        return [comp_s * io_s / (comp_s + io_s) for comp_s, io_s in pairs]

    def compare(self, name: str, seed: int) -> Interval:
        """The TTFT of a policy over the planner's, paired by repetitions."""
        return bootstrap_paired(self.ttft_s[name], self.ttft_s[PLANNED], seed)


def list_figures(
    plane: str, points: Sequence[SweepPoint], seed: int
) -> Iterator[tuple[str, Figure]]:
    """Each point, and of all of them the worst; `plane` says where they were measured."""
    best = {p.row: p.compare(p.best_fixed, seed) for p in points}
    costs = {p.row: bootstrap_paired(p.ttft_s[PLANNED], p.ttft_s[NO_STORE], seed) for p in points}
    yield f"restore_vs_best_fixed[{plane}]", _judge(_bound(best.values(), min), BEST_FIXED_AIM)
    yield f"ttft_vs_no_store[{plane}]", _judge(_bound(costs.values(), max), NO_STORE_AIM)
    for point in points:
        row = f"{plane},{point.row}"
        yield f"restore_vs_best_fixed[{row}]", _judge(best[point.row], BEST_FIXED_AIM)
        yield f"ttft_vs_no_store[{row}]", _judge(costs[point.row], NO_STORE_AIM)
        for name in (*FIXED, MEETING) if MEETING in point.ttft_s else FIXED:
            yield f"ttft_vs_planned[{name},{row}]", _judge(point.compare(name, seed), None)
        for name in (PLANNED, MEETING) if MEETING in point.ttft_s else (PLANNED,):
            beyond = bootstrap_paired(point.ttft_s[name], point.floor_s, seed)
            yield f"ttft_vs_floor[{name},{row}]", _judge(beyond, None)


def require_cover(points: Sequence[SweepPoint], least_loss: float) -> None:
    """BenchError where the sweep holds no point at which `always`, or `never`, loses so much."""
    for name in (ALWAYS, NEVER):
        most = max(p.compare(name, 0).value for p in points)
        if most < 1 + least_loss:
            raise BenchError(
                f"{name} takes at most {most:.3f} of the planner's TTFT anywhere in the sweep, "
                f"needed: {1 + least_loss:g} at some point; sweep more bandwidths"
            )


def _bound(points: Iterable[Interval], worst: Callable[[Iterable[float]], float]) -> Interval:
    """The worst value of any point, and the worst ends of any interval."""
    intervals = list(points)
    return Interval(
        worst(i.value for i in intervals),
        worst(i.low for i in intervals),
        worst(i.high for i in intervals),
    )


def _judge(interval: Interval, aim: Aim | None) -> Figure:
    return judge_figure(interval.value, interval.low, interval.high, "ratio", aim)
