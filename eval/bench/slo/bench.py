"""How many more requests a second keep their promises when budgets decide, beside stock SGLang.

tune stock ─▶ seed 0: load 1: A B C D E   load 2: E D C B A   …   seed 1: …   ─▶ figures
(each workload by itself, on requests that are not scored)
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from bana.eval.bench.children import confined
from bana.eval.bench.harness import Bench, Session
from bana.eval.bench.placement import plan_router_placement
from bana.eval.bench.slo.figures import WorkloadRuns, judge_workload
from bana.eval.bench.slo.grid import Tried, plan_round, take_turns
from bana.eval.bench.slo.points import (
    PointSeen,
    read_isolated,
    read_point,
    take_isolated,
    take_point,
)
from bana.eval.bench.slo.settings import (
    BUDGET,
    SCALES,
    TUNED,
    SloSettings,
    SloWorkload,
    describe_slo_settings,
)
from bana.eval.bench.slo.sides import Fleet, SloSide, make_budget_side, make_stock_side
from bana.eval.bench.slo.tuning import Args, Tuned, name_args, tune_stock
from bana.eval.bench.slo.workloads import Ask, find_trace, offer_requests
from bana.eval.client.isolated import Isolated
from bana.eval.requests import Workload
from bana.slo.figures import Figure


def measure_slo(session: Session) -> Mapping[str, Figure]:
    """All figures of this benchmark."""
    settings = SCALES[session.request.scale]
    with _open_fleet(session, settings) as fleet:
        return measure_fleet(session, settings, fleet)


def measure_fleet(session: Session, settings: SloSettings, fleet: Fleet) -> Mapping[str, Figure]:
    """Tune the stock sides for every workload, then compare all sides."""
    jobs = {w.name: SloJob(session, settings, w, fleet) for w in settings.workloads}
    tuned = tune_stock(settings, {name: job.offer_tuning for name, job in jobs.items()})
    figures: dict[str, Figure] = {}
    told: dict[str, object] = {}
    for name, job in jobs.items():
        found = judge_workload(job.run(tuned[name]))
        figures |= found.figures
        told[name] = {
            "tuned_flags": name_args(tuned[name].args),
            "tuning_attainment": tuned[name].scores,
            "capacity_rps": tuned[name].capacity_rps,
            "isolated": job.describe_isolated(),
            **found.notes,
        }
    session.notes["measured"] = told
    return figures


@contextlib.contextmanager
def _open_fleet(session: Session, settings: SloSettings) -> Iterator[Fleet]:
    """No server yet, and none left at the end; the client on a core of its own."""
    placement = plan_router_placement()
    with tempfile.TemporaryDirectory(prefix="bb-") as name, confined(placement.client):
        fleet = Fleet(session, settings, placement, Path(name))
        try:
            yield fleet
        finally:
            fleet.keep_only(())


class SloJob:
    """The measurements of one workload; each is a trial of the session's."""

    def __init__(
        self, session: Session, settings: SloSettings, workload: SloWorkload, fleet: Fleet
    ) -> None:
        self._session = session
        self._settings = settings
        self._workload = workload
        self._fleet = fleet
        self._trace = find_trace(workload.shape, os.environ)
        self._isolated: Isolated | None = None

    def offer_tuning(self, args: Args, rate_rps: float) -> PointSeen:
        """What the stock side attains with these flags, on requests that are not scored."""
        side = make_stock_side(self._settings, TUNED, args)
        # One server at a time: candidates are many.
        self._fleet.keep_only([side])
        settings = self._settings
        where = f"tuning {name_args(args)}"
        return self._take(side, where, settings.seeds, rate_rps, settings.requests)

    def run(self, tuned: Tuned) -> WorkloadRuns:
        """All points, seed by seed."""
        sides = self._list_sides(tuned)
        self._fleet.keep_only(list(sides.values()))
        curves: dict[str, list[list[PointSeen]]] = {side: [] for side in sides}
        light: dict[str, list[PointSeen]] = {BUDGET: [], TUNED: []}
        for seed in range(self._settings.seeds):
            for name in take_turns(list(light), seed):
                light[name].append(self._take_light(sides[name], seed, tuned))
            for name, curve in self._run_seed(sides, seed, tuned).items():
                curves[name].append(curve)
        typical_s = statistics.median(point.ttft_s for point in self._learn_isolated().points)
        return WorkloadRuns(
            name=self._workload.name,
            curves=curves,
            light=light,
            target=self._settings.target_attainment,
            p99_limit_s=self._settings.p99_factor * typical_s,
        )

    def _list_sides(self, tuned: Tuned) -> dict[str, SloSide]:
        """All that are compared, ours first."""
        orders = self._settings.stock_orders
        stocks = {order: make_stock_side(self._settings, order, tuned.args) for order in orders}
        return {BUDGET: make_budget_side(self._settings), **stocks}

    def describe_isolated(self) -> dict[str, object]:
        """What the promises are multiples of, in milliseconds."""
        isolated = self._learn_isolated()
        tpot_s = isolated.tpot_s
        return {
            "ttft_ms": {str(p.prompt_tokens): round(p.ttft_s * 1e3, 1) for p in isolated.points},
            "tpot_ms": None if tpot_s is None else round(tpot_s * 1e3, 1),
        }

    def _run_seed(
        self, sides: Mapping[str, SloSide], seed: int, tuned: Tuned
    ) -> dict[str, list[PointSeen]]:
        grid = self._workload.grid
        curves: dict[str, list[PointSeen]] = {side: [] for side in sides}
        tried: dict[str, list[Tried]] = {side: [] for side in sides}
        turn = seed
        while (planned := plan_round(tried, grid)) is not None:
            rate_rps = planned.multiple * tuned.capacity_rps
            for name in take_turns(planned.sides, turn):
                where = f"seed {seed}, load {planned.multiple:.3g}"
                seen = self._take(sides[name], where, seed, rate_rps, self._settings.requests)
                curves[name].append(seen)
                tried[name].append(Tried(planned.multiple, seen.attainment))
            turn += 1
        return curves

    def _take_light(self, side: SloSide, seed: int, tuned: Tuned) -> PointSeen:
        rate_rps = self._settings.light_load * tuned.capacity_rps
        requests = self._settings.light_requests
        return self._take(side, f"seed {seed}, light load", seed, rate_rps, requests)

    def _take(
        self, side: SloSide, where: str, seed: int, rate_rps: float, requests: int
    ) -> PointSeen:
        isolated = self._learn_isolated()
        name = f"{self._workload.name}, {where}, {side.name} at {rate_rps:.4g}/s"

        def measure() -> Mapping[str, float]:
            if not self._fleet.is_up(side):
                self._warm_up(side, isolated)
            served = self._fleet.reach(side)
            offered = self._offer(seed, rate_rps, requests)
            return take_point(self._session, self._settings, served, offered, isolated)

        return read_point(self._session.run_trial(name, measure))

    def _warm_up(self, side: SloSide, isolated: Isolated) -> None:
        """Start it, and let it meet its first requests before any that count."""
        settings = self._settings
        rate_rps = 2 * self._workload.start_rps
        offered = self._offer(settings.seeds, rate_rps, settings.light_requests)
        take_point(self._session, settings, self._fleet.reach(side), offered, isolated)

    def _learn_isolated(self) -> Isolated:
        """Measured before any load, on SGLang's defaults."""
        if self._isolated is None:
            settings = self._settings
            name = f"{self._workload.name}, isolated latency"

            def measure() -> Mapping[str, float]:
                offered = self._offer(settings.seeds, 1.0, settings.requests)
                served = self._fleet.reach(make_stock_side(settings, TUNED, settings.candidates[0]))
                return take_isolated(self._session, settings, served, offered)

            self._isolated = read_isolated(self._session.run_trial(name, measure))
        return self._isolated

    def _offer(self, seed: int, rate_rps: float, requests: int) -> Workload:
        settings = self._settings
        ask = Ask(
            seed=self._session.seed_of(seed),
            rate_rps=rate_rps,
            requests=requests,
            warmup_requests=settings.warmup_requests,
            first_token_id=settings.first_token_id,
            last_token_id=settings.last_token_id,
            max_input_tokens=settings.max_input_tokens,
        )
        return offer_requests(self._workload.shape, ask, self._trace)


SLO = Bench(
    help="latency budgets against stock SGLang's orders: requests/s that keep their promises",
    settings=describe_slo_settings,
    measure=measure_slo,
)
