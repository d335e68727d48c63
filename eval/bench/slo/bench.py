"""How many more requests a second keep their promises when budgets decide, beside stock SGLang.

tune stock ─▶ seed 0: load 1: A B C D E   load 2: E D C B A   …   seed 1: …   ─▶ figures
(each workload by itself, on requests that are not scored)
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import msgspec

from bana.eval.bench.harness import Bench, Session
from bana.eval.bench.slo.figures import WorkloadRuns, judge_workload
from bana.eval.bench.slo.grid import Tried, plan_round, take_turns
from bana.eval.bench.slo.points import PointSeen, describe_isolated
from bana.eval.bench.slo.settings import (
    BUDGET,
    DEFAULT,
    SCALES,
    TUNED,
    SloSettings,
    SloWorkload,
    describe_slo_settings,
)
from bana.eval.bench.slo.sides import (
    Fleet,
    SloSide,
    make_budget_side,
    make_stock_side,
    open_fleet,
)
from bana.eval.bench.slo.taking import Draw, Taker
from bana.eval.bench.slo.tuning import Args, Tuned, name_args, tune_stock
from bana.eval.client.isolated import Isolated
from bana.slo.figures import Figure


def measure_slo(session: Session) -> Mapping[str, Figure]:
    """All figures of this benchmark."""
    settings = SCALES[session.request.scale]
    with open_fleet(session, settings) as fleet:
        return measure_fleet(session, settings, fleet)


def measure_fleet(session: Session, settings: SloSettings, fleet: Fleet) -> Mapping[str, Figure]:
    """Tune the stock sides for every workload, then compare all sides."""
    wanted = tuple(w for w in settings.workloads if session.wants(w.name))
    settings = msgspec.structs.replace(settings, workloads=wanted)
    jobs = {w.name: SloJob(session, settings, w, fleet) for w in wanted}
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


class SloJob:
    """The measurements of one workload; each is a trial of the session's."""

    def __init__(
        self, session: Session, settings: SloSettings, workload: SloWorkload, fleet: Fleet
    ) -> None:
        self._settings = settings
        self._workload = workload
        self._fleet = fleet
        self._taker = Taker(session, settings, workload, fleet, settings.light_requests)
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
        """What the promises are multiples of."""
        return describe_isolated(self._learn_isolated())

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
        draw = Draw(seed, rate_rps, requests)
        return self._taker.take(side, where, draw, self._learn_isolated())

    def _learn_isolated(self) -> Isolated:
        """Measured before any load, on SGLang's defaults."""
        if self._isolated is None:
            side = make_stock_side(self._settings, TUNED, self._settings.candidates[0])
            self._isolated = self._taker.learn_isolated(side, "isolated latency")
        return self._isolated


SLO = Bench(
    help="latency budgets against stock SGLang's orders: requests/s that keep their promises",
    settings=describe_slo_settings,
    measure=measure_slo,
    parts=tuple(workload.name for workload in DEFAULT.workloads),
)
