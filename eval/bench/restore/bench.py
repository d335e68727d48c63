"""Fetch or recompute: the planner beside fixed rules over a sweep of bandwidths.

simulated   conversations on one instance; each load, bandwidth and policy with the same requests
engine      documents on a tier of a real one; each bandwidth and policy with the same requests
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from bana.eval.bench.errors import BenchError
from bana.eval.bench.harness import Bench, Session
from bana.eval.bench.restore.engine_part import ENGINE, measure_engine
from bana.eval.bench.restore.figures import SweepPoint, list_figures, require_cover
from bana.eval.bench.restore.settings import (
    FIXED,
    GB_PER_S,
    MEETING,
    NEVER,
    NO_STORE,
    PLANNED,
    SCALES,
    RestoreSettings,
    build_scene,
    describe_restore_settings,
)
from bana.eval.bench.trials import Values
from bana.eval.requests import Ending
from bana.eval.simulator.hardware import build_hardware
from bana.eval.simulator.points import Measured, Point, PointRunner
from bana.eval.simulator.spec import Segment
from bana.slo.figures import Figure

Part = Callable[[Session, RestoreSettings], Mapping[str, Figure]]
SIMULATED = "simulated"
# They read nothing, so that the bandwidth is all the same to them.
UNFETCHED = (NO_STORE, NEVER)
FETCHED = tuple(name for name in (PLANNED, MEETING, *FIXED) if name not in UNFETCHED)


def measure_restore(session: Session) -> Mapping[str, Figure]:
    """All figures of this benchmark, part by part."""
    settings = SCALES[session.request.scale]
    figures: dict[str, Figure] = {}
    for name, part in PARTS.items():
        if session.wants(name):
            figures |= part(session, settings)
    return figures


def measure_simulated(session: Session, settings: RestoreSettings) -> Mapping[str, Figure]:
    """The sweep on a simulated instance."""
    sweep = SimulatedSweep(session, settings)
    points = [
        sweep.take_point(load, bytes_per_s)
        for load, bytes_per_s in itertools.product(settings.loads, settings.bytes_per_s)
    ]
    if settings.covers:
        require_cover(points, settings.least_loss)
    return dict(list_figures(SIMULATED, points, session.request.seed))


PARTS: Mapping[str, Part] = {SIMULATED: measure_simulated, ENGINE: measure_engine}


class SimulatedSweep:
    """Takes points; what no bandwidth changes is simulated once."""

    def __init__(self, session: Session, settings: RestoreSettings) -> None:
        self._session = session
        self._settings = settings

    def take_point(self, load: str, bytes_per_s: float) -> SweepPoint:
        """One load at one bandwidth, all policies and seeds."""
        first = self._settings.bytes_per_s[0]
        seeds = [self._session.seed_of(index) for index in range(self._settings.seeds)]
        trials = [
            {
                **self._take(load, first, seed, UNFETCHED),
                **self._take(load, bytes_per_s, seed, FETCHED),
            }
            for seed in seeds
        ]
        names = (*UNFETCHED, *FETCHED)
        ttft_s = {n: [trial[n] for trial in trials] for n in names}
        return SweepPoint(load, f"{bytes_per_s / GB_PER_S:g}GB/s", ttft_s)

    def _take(self, load: str, bytes_per_s: float, seed: int, names: tuple[str, ...]) -> Values:
        def measure() -> Values:
            return measure_ttfts(self._settings, load, bytes_per_s, seed, names)

        where = "any" if names == UNFETCHED else f"{bytes_per_s / GB_PER_S:g}"
        return self._session.run_trial(f"simulated {load} at {where} GB/s, seed {seed}", measure)


def measure_ttfts(
    settings: RestoreSettings, load: str, bytes_per_s: float, seed: int, names: tuple[str, ...]
) -> Values:
    """The mean TTFT of these policies over the same requests; BenchError where one is left over."""
    scene = build_scene(settings, bytes_per_s)
    runner = PointRunner(scene, build_hardware(scene))
    return {
        name: read_ttft_s(runner.measure(Point(name, Segment(seed), settings.loads[load])))
        for name in names
    }


def read_ttft_s(measured: Measured) -> float:
    """The mean TTFT of a run in which everybody was served."""
    overall = measured.summary.overall
    ttft_s = overall.latencies.ttft_s
    finished = overall.endings.get(Ending.FINISHED, 0)
    if ttft_s is None or finished < overall.offered:
        raise BenchError(
            f"{measured.point.policy} served {finished} of {overall.offered} requests; a mean TTFT "
            "needs all of them: lower the load, or raise the bandwidth"
        )
    return ttft_s.mean


RESTORE = Bench(
    help="fetch or recompute: the planner beside fixed rules and no store, by bandwidth",
    settings=describe_restore_settings,
    measure=measure_restore,
    parts=tuple(PARTS),
)
