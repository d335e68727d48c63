"""Does the simulator tell what the engine does? The same requests and policies through both.

idle side ─▶ gaps ──────────────────────────────┐
search, then one run under load ─▶ step times ──┴▶ twin
other seeds, loads around what the twin carries: live │ twin ─▶ errors, the worst point counts
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bana.eval.bench.agreement.engine_facts import list_facts
from bana.eval.bench.agreement.figures import Compared, Pair, Range, list_figures
from bana.eval.bench.agreement.settings import (
    LOGGED_POLICIES,
    SCALES,
    AgreementSettings,
    describe_agreement_settings,
)
from bana.eval.bench.agreement.step_times import (
    list_model,
    measure_log,
    read_mean_model,
    read_model,
)
from bana.eval.bench.agreement.twin import Twin, fit_gaps, make_twin
from bana.eval.bench.harness import Bench, Session
from bana.eval.bench.slo.grid import Tried, plan_round, take_turns
from bana.eval.bench.slo.points import PointSeen, describe_isolated, promise, read_point
from bana.eval.bench.slo.settings import BUDGET, SloWorkload
from bana.eval.bench.slo.sides import (
    Fleet,
    SloSide,
    make_budget_side,
    make_stock_side,
    open_fleet,
)
from bana.eval.bench.slo.taking import Draw, Taker, require_tpot_s
from bana.eval.bench.slo.tuning import search_capacity
from bana.eval.bench.trials import Values
from bana.eval.client.isolated import Isolated
from bana.slo.figures import Figure
from bana.slo.steps import StepModel

# The twin's own search costs next to nothing.
TWIN_POINTS = 16
TWIN_TOLERANCE = 1.05
# What a seed may carry more or less than that of the fit.
SEED_SPAN = 8.0


def measure_agreement(session: Session) -> Mapping[str, Figure]:
    """All figures of this benchmark."""
    settings = SCALES[session.request.scale]
    with open_fleet(session, settings) as fleet:
        return measure_fleet(session, settings, fleet)


def measure_fleet(
    session: Session, settings: AgreementSettings, fleet: Fleet
) -> Mapping[str, Figure]:
    """Fit and judge each workload by itself."""
    figures: dict[str, Figure] = {}
    told: dict[str, object] = {}
    for workload in settings.workloads:
        job = AgreementJob(session, settings, workload, fleet)
        figures |= job.run()
        told[workload.name] = job.notes
    session.notes["measured"] = told
    return figures


def list_sides(settings: AgreementSettings) -> dict[str, SloSide]:
    """The budget side, which logs its decisions, and stock SGLang with its defaults."""
    budget = msgspec.structs.replace(make_budget_side(settings), settings=LOGGED_POLICIES)
    stocks = {order: make_stock_side(settings, order, ()) for order in settings.stock_orders}
    return {BUDGET: budget, **stocks}


class AgreementJob:
    """One workload. Live measurements are trials of the session's; simulations are taken anew."""

    def __init__(
        self, session: Session, settings: AgreementSettings, workload: SloWorkload, fleet: Fleet
    ) -> None:
        self.notes: dict[str, object] = {}
        self._session = session
        self._settings = settings
        self._workload = workload
        self._taker = Taker(session, settings, workload, fleet, settings.warmup_requests)
        self._sides = list_sides(settings)
        self._isolated: Isolated | None = None
        self._idle: dict[str, Isolated] = {}

    def run(self) -> Mapping[str, Figure]:
        """Fit on a seed of its own, then judge on the others."""
        settings, isolated = self._settings, self._learn_isolated()
        capacity_rps = self._search(isolated)
        self.notes["capacity_rps"] = capacity_rps
        self.notes["promised_multiples_of"] = describe_isolated(isolated)
        fit = self._take_fit(capacity_rps, isolated)
        model = read_model(fit)
        twins = {name: self._make_twin(name, model, isolated) for name in self._sides}
        simulated = self._simulate(twins[BUDGET], self._draw_fit(capacity_rps))
        # Told, and not judged: the model was taken from it.
        own = Compared(settings.seeds, settings.fit_load, (Pair(read_point(fit), simulated, 1.0),))
        self.notes["fit"] = own.describe()
        self._tell(simulated)
        return self._judge(self._run_loads(capacity_rps, twins))

    def _search(self, isolated: Isolated) -> float:
        """About what the budget side carries, on the seed that is not judged."""
        settings, side = self._settings, self._sides[BUDGET]

        def offer(rate_rps: float) -> PointSeen:
            draw = Draw(settings.seeds, rate_rps, settings.requests)
            return self._taker.take(side, "search", draw, isolated)

        return search_capacity(settings, self._workload, [], offer)

    def _draw_fit(self, capacity_rps: float) -> Draw:
        settings = self._settings
        return Draw(settings.seeds, settings.fit_load * capacity_rps, settings.requests)

    def _take_fit(self, capacity_rps: float, isolated: Isolated) -> Values:
        """A point of the budget side, and the step times that the engine believed in meanwhile."""
        side, draw = self._sides[BUDGET], self._draw_fit(capacity_rps)

        def measure() -> Values:
            log = self._taker.reach(side, isolated).decision_log
            begun_byte = measure_log(log)
            point = self._taker.measure(side, draw, isolated)
            return {**point, **list_model(read_mean_model(log, begun_byte))}

        name = f"{self._workload.name}, fit at {draw.rate_rps:.4g}/s"
        return self._session.run_trial(name, measure)

    def _learn_isolated(self) -> Isolated:
        """What promises are multiples of."""
        if self._isolated is None:
            where = f"isolated latency, {BUDGET}"
            self._isolated = self._taker.learn_isolated(self._sides[BUDGET], where)
        return self._isolated

    def _learn_idle(self, name: str) -> Isolated:
        """The same of either side, once the fit has been taken: machines drift."""
        if name not in self._idle:
            where = f"isolated latency after the fit, {name}"
            self._idle[name] = self._taker.learn_isolated(self._sides[name], where)
        return self._idle[name]

    def _make_twin(self, name: str, model: StepModel, isolated: Isolated) -> Twin:
        """The twin of a side, its gaps fitted on the idle server."""
        alone = self._learn_idle(name)

        def measure() -> Values:
            return list_facts(self._taker.reach(self._sides[name], isolated).read_info())

        facts = self._session.run_trial(f"{self._workload.name}, engine, {name}", measure)
        twin = make_twin(name, facts, model)
        gaps = fit_gaps(twin, alone)
        self.notes[name] = {
            "engine": msgspec.to_builtins(twin.engine),
            "step_times": msgspec.to_builtins(model),
            "overhead_ms": round(gaps.overhead_s * 1e3, 2),
            "door_ms": round(gaps.door_s * 1e3, 2),
            "isolated": describe_isolated(alone),
        }
        return msgspec.structs.replace(twin, gaps=gaps)

    def _run_loads(
        self, capacity_rps: float, twins: Mapping[str, Twin]
    ) -> dict[str, list[Compared]]:
        """The judged points of all sides; each load is offered to them in turn."""
        compared: dict[str, list[Compared]] = {name: [] for name in self._sides}
        for seed in range(self._settings.seeds):
            tried: dict[str, list[Tried]] = {name: [] for name in self._sides}
            carried_rps, turn = self._find_carried(twins[BUDGET], seed, capacity_rps), seed
            while (planned := plan_round(tried, self._workload.grid)) is not None:
                draw = Draw(seed, planned.multiple * carried_rps, self._settings.requests)
                pairs: dict[str, list[Pair]] = {name: [] for name in planned.sides}
                for repeat in range(self._settings.repeats):
                    where = f"seed {seed}, load {planned.multiple:.3g}, run {repeat + 1}"
                    for name in take_turns(planned.sides, turn + repeat):
                        pairs[name].append(self._take_pair(twins[name], name, where, draw))
                for name in planned.sides:
                    point = Compared(seed, planned.multiple, tuple(pairs[name]))
                    tried[name].append(Tried(planned.multiple, point.live_attainment))
                    compared[name].append(point)
                turn += 1
        return compared

    def _take_pair(self, twin: Twin, name: str, where: str, draw: Draw) -> Pair:
        """One run of a point, live and then simulated."""
        side = self._sides[name]
        pace = self._taker.learn_tpot_s(side, where) / require_tpot_s(self._learn_idle(name))
        live = self._taker.take(side, where, draw, self._learn_isolated())
        simulated = self._simulate(twin.at_pace(pace), draw)
        self._tell(simulated)
        return Pair(live, simulated, pace)

    def _find_carried(self, twin: Twin, seed: int, capacity_rps: float) -> float:
        """About what the twin carries of a seed: those of a trace differ severalfold in length."""
        settings = self._settings
        finely = msgspec.structs.replace(
            settings, search_points=TWIN_POINTS, search_tolerance=TWIN_TOLERANCE
        )
        widely = msgspec.structs.replace(
            self._workload,
            start_rps=capacity_rps,
            min_rps=capacity_rps / SEED_SPAN,
            max_rps=capacity_rps * SEED_SPAN,
        )

        def offer(rate_rps: float) -> PointSeen:
            return self._simulate(twin, Draw(seed, rate_rps, settings.requests))

        return search_capacity(finely, widely, [], offer)

    def _simulate(self, twin: Twin, draw: Draw) -> PointSeen:
        workload = promise(self._taker.offer(draw), self._learn_isolated())
        return twin.take_point(workload, self._settings.drain_s)

    def _tell(self, point: PointSeen) -> None:
        mean = "none" if point.ttft_mean_s is None else f"{point.ttft_mean_s:.4g} s"
        self._session.say(f"  simulated: attains {point.attainment:.3f}, mean TTFT {mean}")

    def _judge(self, compared: Mapping[str, list[Compared]]) -> dict[str, Figure]:
        settings = self._settings
        judged = Range(settings.low_attainment, settings.high_attainment)
        self.notes["points"] = {
            name: [point.describe() for point in points] for name, points in compared.items()
        }
        return {
            key: figure
            for name, points in compared.items()
            for key, figure in list_figures(self._workload.name, name, points, judged)
        }


AGREEMENT = Bench(
    help="the simulator beside the engine it stands for: how far attainment and TTFT differ",
    settings=describe_agreement_settings,
    measure=measure_agreement,
)
