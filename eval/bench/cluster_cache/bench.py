"""What a store that instances share gives, beside routers that know whose cache has what.

how long computing takes ─▶ rates
each workload, each CV:   threshold of cache_aware   seed 0: A B C D E   seed 1: E D C B A   …
each workload, saturated: seed 0: A B C   seed 1: C B A   …
hand-off:                 handed, unified   unified, handed   …                      ─▶ figures
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from bana.eval.bench.cluster_cache.figures import (
    Case,
    Taken,
    describe_case,
    find_better_routing,
    list_case,
    list_saturated,
)
from bana.eval.bench.cluster_cache.handing import measure_handoff
from bana.eval.bench.cluster_cache.points import TTFT, ask_all, take_point, take_round
from bana.eval.bench.cluster_cache.settings import (
    CACHE_AWARE,
    INSTANCES,
    NO_STORE,
    SATURATED_SIDES,
    SCALES,
    THRESHOLDS,
    CacheSide,
    ClusterCacheSettings,
    describe_cluster_cache_settings,
    list_sides,
)
from bana.eval.bench.cluster_cache.sides import Doors, open_fleet
from bana.eval.bench.cluster_cache.workloads import (
    WORKLOADS,
    Draw,
    Shared,
    find_data,
    offer_requests,
)
from bana.eval.bench.harness import Bench, Session
from bana.eval.bench.slo.grid import take_turns
from bana.eval.bench.trials import Values
from bana.eval.requests import Workload
from bana.slo.figures import Figure

HANDOFF = "handoff"


def measure_cluster_cache(session: Session) -> Mapping[str, Figure]:
    """All figures of this benchmark."""
    settings = SCALES[session.request.scale]
    with open_fleet(session, settings) as (fleet, folder):
        figures = measure_workloads(session, settings, fleet, folder)
        if session.wants(HANDOFF):
            figures |= measure_handoff(session, settings, fleet)
        return figures


def measure_workloads(
    session: Session, settings: ClusterCacheSettings, fleet: Doors, folder: Path
) -> dict[str, Figure]:
    """Every workload by itself, and which routing was the better one over all of them."""
    figures: dict[str, Figure] = {}
    cases: list[Case] = []
    told: dict[str, object] = {}
    for shared in filter(session.wants, settings.shared):
        job = CacheJob(session, settings, shared, fleet, folder)
        figures |= job.run()
        cases += job.cases
        told |= job.notes
    if cases:
        better, loss = find_better_routing(cases)
        told["better_routing"] = {"policy": better, "ttft_of_the_other": round(loss, 3)}
    session.notes["measured"] = told
    return figures


class CacheJob:
    """The measurements of one workload; each is a trial of the session's."""

    def __init__(
        self,
        session: Session,
        settings: ClusterCacheSettings,
        shared: Shared,
        fleet: Doors,
        folder: Path,
    ) -> None:
        self.cases: list[Case] = []
        self.notes: dict[str, object] = {}
        self._session = session
        self._settings = settings
        self._shared = shared
        self._fleet = fleet
        self._folder = folder
        self._data = find_data(shared, os.environ)

    def run(self) -> dict[str, Figure]:
        """All its figures."""
        rate_rps, seed = self._find_rate(), self._session.request.seed
        figures: dict[str, Figure] = {}
        for cv in self._settings.cvs:
            threshold = self._tune(cv, rate_rps)
            case = Case(self._shared, cv, self._take_case(cv, rate_rps, threshold))
            self.cases.append(case)
            figures |= dict(list_case(case, seed))
            self.notes[case.row] = {
                "rate_rps": round(rate_rps, 3),
                "cache_aware_threshold": threshold,
                **describe_case(case),
            }
        if self._shared is not Shared.LITTLE:
            figures |= dict(list_saturated(self._shared, self._take_saturated(rate_rps), seed))
        return figures

    def _find_rate(self) -> float:
        """So many requests a second as load the instances, if they compute each prompt."""
        name = f"{self._shared}, computing"
        answer_s = self._session.run_trial(name, self._time_computing)["answer_s"]
        return self._settings.load * INSTANCES / answer_s

    def _time_computing(self) -> Values:
        """How long an idle instance takes for requests none of which it has seen."""
        settings = self._settings
        requests = self._offer(settings.seeds, 1.0, 1.0).requests[: settings.timed_prompts]
        walls_s = []
        for request in requests:
            with self._fleet.open(NO_STORE, 0) as door:
                walls_s.append(ask_all(settings, door, [request], 1).wall_s)
        return {"answer_s": statistics.fmean(walls_s)}

    def _tune(self, cv: float, rate_rps: float) -> int:
        """The threshold of SGLang's router that does better on requests that are not scored."""
        if self._shared is Shared.LITTLE:
            return THRESHOLDS[0]
        means = {
            threshold: self._take(
                CACHE_AWARE,
                f"tuning {threshold}",
                self._offer(self._settings.seeds, cv, rate_rps),
                threshold,
            )[TTFT]
            for threshold in THRESHOLDS
        }
        return min(means, key=lambda threshold: means[threshold])

    def _take_case(self, cv: float, rate_rps: float, threshold: int) -> Taken:
        sides = {side.name: side for side in list_sides(self._shared)}
        taken: dict[str, list[Values]] = {name: [] for name in sides}
        for seed in range(self._settings.seeds):
            offered = self._offer(seed, cv, rate_rps)
            for name in take_turns(list(sides), seed):
                values = self._take(sides[name], f"seed {seed}", offered, threshold)
                taken[name].append(values)
        return taken

    def _take(self, side: CacheSide, where: str, offered: Workload, threshold: int) -> Values:
        def measure() -> Values:
            with self._fleet.open(side, threshold) as door:
                return take_point(self._session, self._settings, door, offered)

        # The draw is told by its fingerprint: rates and CVs make others.
        name = f"{self._shared} {offered.fingerprint[:8]}, {where}, {side.name}"
        return self._session.run_trial(name, measure)

    def _take_saturated(self, rate_rps: float) -> Taken:
        sides = {side.name: side for side in SATURATED_SIDES}
        taken: dict[str, list[Values]] = {name: [] for name in sides}
        for seed in range(self._settings.seeds):
            offered = self._offer(seed, 1.0, rate_rps)
            for name in take_turns(list(sides), seed):
                where = f"{self._shared}, saturated, seed {seed}, {name}"
                measure = partial(self._take_round, sides[name], offered)
                taken[name].append(self._session.run_trial(where, measure))
        return taken

    def _take_round(self, side: CacheSide, offered: Workload) -> Values:
        with self._fleet.open(side, THRESHOLDS[0]) as door:
            return take_round(self._settings, door, offered.requests)

    def _offer(self, seed: int, cv: float, rate_rps: float) -> Workload:
        settings = self._settings
        draw = Draw(
            seed=self._session.seed_of(seed),
            cv=cv,
            rate_rps=rate_rps,
            requests=settings.requests,
            warmup_requests=settings.warmup_requests,
        )
        return offer_requests(self._shared, settings.contents, draw, self._data, self._folder)


CLUSTER_CACHE = Bench(
    help="a shared store and its routing beside private caches and cache-aware routing",
    settings=describe_cluster_cache_settings,
    measure=measure_cluster_cache,
    parts=(*WORKLOADS, HANDOFF),
)
