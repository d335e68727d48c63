"""Several policies over the segments of a scene: how much each can carry, and how they compare.

search     each policy, each segment: rates until attainment, then p99 as well, is bracketed
compare    each policy, each segment: once more at the rate that the best baseline carries
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from bana.eval.capacity import RateBounds, find_max_rate, plan_next_rate
from bana.eval.live.spec import SearchSpec
from bana.eval.sentence import tell_rate, tell_share
from bana.eval.simulator.points import Detail, Measured, Point, PointRunner
from bana.eval.simulator.spec import SceneSpec, Segment, list_segments
from bana.eval.summary import MaxRate

Say = Callable[[str], None]


class Capacity(msgspec.Struct, frozen=True):
    """What one policy carries, by segment; `mean_rps` where every segment has an answer."""

    by_segment: Mapping[str, MaxRate]

    @property
    def mean_rps(self) -> float | None:
        rates = [found.rps for found in self.by_segment.values()]
        known = [rate for rate in rates if rate is not None]
        return statistics.fmean(known) if known and len(known) == len(rates) else None


class StudyResult(msgspec.Struct, frozen=True):
    """Everything that was measured; maps are by policy.

    `compared` are the runs at one rate for all: of each segment what `baseline` carries there, the
    best of the baselines.
    """

    measured: tuple[Measured, ...]
    compared: tuple[Measured, ...]
    max_rates: Mapping[str, Capacity]
    p99_bounded: Mapping[str, Capacity]
    baseline: str | None
    is_interrupted: bool = False


class Study:
    """Runs one scene; what was measured before an interruption is kept."""

    def __init__(self, scene: SceneSpec, runner: PointRunner, say: Say) -> None:
        self._scene = scene
        self._runner = runner
        self._say = say
        self._segments = list_segments(scene)
        self._measured: list[Measured] = []
        self._compared: list[Measured] = []

    def run(self) -> StudyResult:
        """Every policy on every segment, unless it is interrupted."""
        try:
            self._search()
            self._compare()
        except KeyboardInterrupt:
            return self._conclude(is_interrupted=True)
        return self._conclude(is_interrupted=False)

    def _search(self) -> None:
        for segment in self._segments:
            for policy in self._scene.policies:
                for rate_rps in self._list_rates(policy, segment):
                    point = Point(policy, segment, rate_rps)
                    self._measure(point, Detail.ENDS, self._measured)

    def _list_rates(self, policy: str, segment: Segment) -> Iterator[float | None]:
        grid = self._scene.grid
        if grid.search is None:
            yield from grid.rates_rps
            return
        for p99_limit_s in (None, grid.p99_limit_s):
            bounds = _bound(grid.search, p99_limit_s)
            while True:
                points = [m.load_point for m in self._select(policy, segment)]
                rate_rps = plan_next_rate(points, grid.target_attainment, bounds)
                if rate_rps is None:
                    break
                yield rate_rps

    def _compare(self) -> None:
        """Without rates every policy runs once, at the workload's own."""
        baseline = self._find_baseline()
        is_rated = bool(self._scene.grid.rates_rps) or self._scene.grid.search is not None
        if is_rated and baseline is None:
            return
        for segment in self._segments:
            rate_rps = None
            if baseline is not None:
                rate_rps = self._find_max_rate(baseline, segment, None).rps
            for policy in self._scene.policies:
                point = Point(policy, segment, rate_rps)
                self._measure(point, Detail.TOKENS, self._compared)

    def _measure(self, point: Point, detail: Detail, kept: list[Measured]) -> None:
        measured = self._runner.measure(point, detail)
        kept.append(measured)
        attainment = tell_share(measured.summary.overall.attainment.value)
        rate = tell_rate(measured.summary.offered_rps)
        self._say(f"{point.policy} {point.segment.label}: attains {attainment} at {rate}")

    def _select(self, policy: str, segment: Segment) -> list[Measured]:
        wanted = (policy, segment)
        return [m for m in self._measured if (m.point.policy, m.point.segment) == wanted]

    def _find_max_rate(self, policy: str, segment: Segment, p99_limit_s: float | None) -> MaxRate:
        points = [m.load_point for m in self._select(policy, segment)]
        return find_max_rate(points, self._scene.grid.target_attainment, p99_limit_s)

    def _measure_capacity(self, policy: str, p99_limit_s: float | None) -> Capacity:
        found = {
            segment.label: self._find_max_rate(policy, segment, p99_limit_s)
            for segment in self._segments
        }
        return Capacity(found)

    def _find_baseline(self) -> str | None:
        """The baseline that carries most on average, where one carries anything known."""
        rates = {
            name: self._measure_capacity(name, None).mean_rps
            for name, policy in self._scene.policies.items()
            if policy.is_baseline
        }
        known = {name: rate for name, rate in rates.items() if rate is not None}
        return max(known, key=lambda name: known[name]) if known else None

    def _conclude(self, *, is_interrupted: bool) -> StudyResult:
        policies = {m.point.policy for m in self._measured}
        rated: Sequence[str] = [name for name in self._scene.policies if name in policies]
        limit_s = self._scene.grid.p99_limit_s
        return StudyResult(
            measured=tuple(self._measured),
            compared=tuple(self._compared),
            max_rates={name: self._measure_capacity(name, None) for name in rated},
            p99_bounded={name: self._measure_capacity(name, limit_s) for name in rated},
            baseline=self._find_baseline(),
            is_interrupted=is_interrupted,
        )


def _bound(search: SearchSpec, p99_limit_s: float | None) -> RateBounds:
    return RateBounds(
        start_rps=search.start_rps,
        min_rps=search.min_rps,
        max_rps=search.max_rps,
        tolerance=search.tolerance,
        # The second search goes on from the points of the first.
        max_points=search.max_points * (1 if p99_limit_s is None else 2),
        p99_limit_s=p99_limit_s,
    )
