"""Several runs in one go: sides that alternate, seeds, and rates up to where promises break.

    seed 0: A B   seed 1: B A   seed 2: A B …     (within a visit: one rate after the other)

The promises are those of the first server that was measured idle, for all sides alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from bana.eval.capacity import RateBounds, find_max_rate, plan_next_rate
from bana.eval.client.watch import Watch
from bana.eval.live.joining import Compared, Measured, compare_sides, merge_points
from bana.eval.live.measure import Idle, Point, build_point, learn_idle, measure_point
from bana.eval.live.servers import Server, Side, find_model
from bana.eval.live.spec import LiveSpec, SearchSpec, name_model
from bana.eval.summary import MaxRate

Keep = Callable[[Measured], None]


class Series(msgspec.Struct, frozen=True):
    """All runs in their order; max rates by side, empty where the rate was not varied."""

    measured: tuple[Measured, ...]
    max_rates: Mapping[str, MaxRate]
    p99_bounded: Mapping[str, MaxRate]
    compared: tuple[Compared, ...]

    @property
    def is_interrupted(self) -> bool:
        return any(one.stored.record.run.is_interrupted for one in self.measured)

    @property
    def is_proof(self) -> bool:
        """Whether every run shows something about its server."""
        return all(one.is_proof for one in self.measured)


class SeriesRunner:
    """Makes the runs of one specification; `keep` gets each as soon as it is made."""

    def __init__(self, spec: LiveSpec, sides: Sequence[Side], watch: Watch, keep: Keep) -> None:
        self._spec = spec
        self._sides = tuple(sides)
        self._watch = watch
        self._keep = keep
        self._measured: list[Measured] = []
        self._idle: Idle | None = None

    def run(self) -> Series:
        """Every visit, unless one is interrupted."""
        for place, seed in enumerate(self._spec.seeds):
            # Whoever comes second meets another machine: the sides take turns.
            order = self._sides if place % 2 == 0 else self._sides[::-1]
            for side in order:
                self._visit(side, seed)
                if self._is_interrupted:
                    return self._conclude()
        return self._conclude()

    @property
    def _is_interrupted(self) -> bool:
        return bool(self._measured) and self._measured[-1].stored.record.run.is_interrupted

    def _visit(self, side: Side, seed: int) -> None:
        if len(self._sides) > 1:
            self._watch.say(f"{side.name}, seed {seed}")
        with side.open() as server:
            for rate_rps in self._rates(side.name, seed):
                self._measure(server, Point(side.name, seed, rate_rps))
                if self._is_interrupted:
                    return

    def _rates(self, side: str, seed: int) -> Iterator[float | None]:
        grid = self._spec.grid
        if grid.search is None:
            yield from grid.rates_rps or (None,)
            return
        bounds = _bound(grid.search)
        while True:
            own = [m for m in self._measured if (m.point.side, m.point.seed) == (side, seed)]
            rate_rps = plan_next_rate(merge_points(own), grid.target_attainment, bounds)
            if rate_rps is None:
                return
            yield rate_rps

    def _measure(self, server: Server, point: Point) -> None:
        if self._spec.client.needs_model:
            self._spec = name_model(self._spec, find_model(server.target))
        offered = build_point(self._spec, point)
        if self._idle is None:
            self._idle = learn_idle(self._spec, offered, server, self._watch)
        stored = measure_point(self._spec, point, offered, server, self._idle, self._watch)
        self._measured.append(Measured(point, stored))
        self._keep(self._measured[-1])

    def _conclude(self) -> Series:
        limit_s = self._p99_limit_s()
        names = [side.name for side in self._sides]
        compared = [compare_sides(self._measured, names[0], other) for other in names[1:]]
        return Series(
            measured=tuple(self._measured),
            max_rates=self._find_max_rates(None),
            p99_bounded={} if limit_s is None else self._find_max_rates(limit_s),
            compared=tuple(one for one in compared if one is not None),
        )

    def _find_max_rates(self, p99_limit_s: float | None) -> dict[str, MaxRate]:
        rated = [one for one in self._measured if one.point.rate_rps is not None]
        target = self._spec.grid.target_attainment
        found = {}
        for name in sorted({one.point.side for one in rated}):
            points = merge_points([one for one in rated if one.point.side == name])
            found[name] = find_max_rate(points, target, p99_limit_s)
        return found

    def _p99_limit_s(self) -> float | None:
        isolated = None if self._idle is None else self._idle.isolated
        if isolated is None:
            return None
        typical_s = statistics.median(point.ttft_s for point in isolated.points)
        return self._spec.grid.p99_factor * typical_s


def _bound(search: SearchSpec) -> RateBounds:
    return RateBounds(
        start_rps=search.start_rps,
        min_rps=search.min_rps,
        max_rps=search.max_rps,
        tolerance=search.tolerance,
        max_points=search.max_points,
    )
