"""Promises, beliefs, errors and what a run leaves."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from bana.eval.client.limits import ClassLimits
from bana.eval.requests import Limits
from bana.eval.simulator.deciding import Decider, Policies
from bana.eval.simulator.log import Entry, EventLog, Happening, KeptLog
from bana.eval.simulator.predicting import DoubtSpec, FixedBelief, draw_doubt
from bana.eval.simulator.promises import Alone, promise
from bana.slo.decisions import Decision, GovernorRecord, OrderRecord
from bana.slo.errors import ConfigError, PlanError
from bana.slo.governor import GOVERNORS, StepKind, StepPlan, StepView
from bana.slo.order import ORDERS, EngineLoad, OrderPlan, QueueColumns, QueueView
from bana.slo.steps import StepModel, StepShape

Make = Callable[..., Any]


class Sink:
    def __init__(self) -> None:
        self.decisions: list[Decision] = []

    def write(self, decision: Decision) -> None:
        self.decisions.append(decision)


def test_promises_are_multiples_of_what_a_request_takes_alone(
    offer_asks: Make, ask: Make, round_times: StepModel
) -> None:
    workload = offer_asks([ask(prompt=150, output=9)])
    classes = {"default": ClassLimits(ttft_x=10, tpot_x=5, e2e_ms=7000)}
    promised = promise(workload, classes, Alone(round_times, 64)).requests[0].limits
    assert promised.ttft_s == pytest.approx(10 * (3 * 0.010 + 0.150))
    assert promised.tpot_s == pytest.approx(5 * 0.012)
    assert promised.e2e_s == 7.0
    with pytest.raises(ConfigError, match="SLO class 'default'"):
        promise(workload, {"other": ClassLimits()}, Alone(round_times, 64))


def test_a_request_that_can_never_fit_is_refused_before_the_run(server: Any, ask: Make) -> None:
    with pytest.raises(ConfigError, match=r"request 0 has 90 prompt and 30 output tokens"):
        server.but(kv_tokens=120).serve([ask(prompt=90, output=30)])


def test_equal_runs_have_equal_hashes_and_others_do_not(server: Any, ask: Make) -> None:
    asks = [ask(due_s=0.01 * n, prompt=10 + n, output=3) for n in range(30)]
    first = server.serve(asks).run
    assert server.serve(asks).run == first
    assert server.but(order="sjf", max_running=2).serve(asks).run.event_hash != first.event_hash
    later = [*asks[:-1], ask(due_s=0.2901, prompt=39, output=3)]
    assert server.serve(later).run.event_hash != first.event_hash


def test_every_field_of_an_entry_is_in_the_hash() -> None:
    entry = Entry(Happening.STEP, 1.5, 10, 2, 1, 7)
    logs = []
    changed = [
        entry,
        Entry(Happening.FINISHED, 1.5, 10, 2, 1, 7),
        Entry(Happening.STEP, 1.25, 10, 2, 1, 7),
        Entry(Happening.STEP, 1.5, 11, 2, 1, 7),
        Entry(Happening.STEP, 1.5, 10, 3, 1, 7),
        Entry(Happening.STEP, 1.5, 10, 2, 0, 7),
        Entry(Happening.STEP, 1.5, 10, 2, 1, 8),
    ]
    for one in changed:
        logs.append(EventLog())
        logs[-1].add(one)
    assert len({log.hash() for log in logs}) == len(changed)
    kept = KeptLog()
    kept.add(entry)
    assert (kept.hash(), kept.entries, kept.kept) == (logs[0].hash(), 1, [entry])


def test_doubt_has_median_one_and_bias_scales_every_coefficient(round_times: StepModel) -> None:
    rng = Random(0)
    drawn = [draw_doubt(DoubtSpec(sigma=0.5), rng) for _ in range(4000)]
    assert statistics.median(drawn) == pytest.approx(1.0, rel=0.05)
    assert statistics.quantiles(drawn, n=100)[83] == pytest.approx(1.65, rel=0.1)
    assert draw_doubt(DoubtSpec(), rng) == 1.0
    shape = StepShape(64, 0.0, 3, 500)
    biased = FixedBelief(round_times, 2.0).model
    assert biased.estimate_step_s(shape) == 2 * round_times.estimate_step_s(shape)


def test_a_belief_changes_what_is_decided_and_not_what_happens(
    server: Any, ask: Make, round_times: StepModel
) -> None:
    # Twice the truth halves the chunk that the governor thinks it can afford.
    asks = [ask(prompt=10, output=50, limits=Limits(tpot_s=0.1)), ask(due_s=0.1, prompt=400)]
    ready = server.but(governor="tpot", can_mix=True)
    steps = {}
    for bias in (1.0, 2.0):
        log = ready.but(model=FixedBelief(round_times, bias).model).serve(asks).log.kept
        steps[bias] = [e for e in log if e.kind is Happening.STEP and e.at_s > 0.1 and e.subject]
    assert steps[2.0][0].subject < steps[1.0][0].subject < 400
    learned = ready.but(model=None).serve(asks)
    assert learned.observed[1].first_s is not None


def test_decisions_are_written_as_they_are_taken(server: Any, ask: Make) -> None:
    sink = Sink()
    served = server.serve([ask(prompt=100, output=2)], sink)
    [order, step] = sink.decisions
    assert isinstance(order, OrderRecord)
    assert order.view.prompt_tokens == (100,)
    assert order.view.service_s == (pytest.approx(0.110),)
    assert isinstance(step, GovernorRecord)
    assert (step.view.prefill_tokens, step.plan.prefill_tokens) == (100, 100)
    assert step.number == order.number + 1
    assert served.run == server.serve([ask(prompt=100, output=2)]).run


class Fixed:
    """Answers what it was made with."""

    def __init__(self, plan: Any) -> None:
        self._plan = plan

    def decide_order(self, view: QueueView, now_s: float, rng: Random) -> OrderPlan:
        plan: OrderPlan = self._plan
        return plan

    def decide_step(self, view: StepView) -> StepPlan:
        plan: StepPlan = self._plan
        return plan


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (OrderPlan((0,), ("a",)), "1 rows"),
        (OrderPlan((0, 0), ("a", "b")), "1 distinct"),
        (OrderPlan((0, 1), ("a",)), "1 reasons"),
        (OrderPlan((0, 3), ("a", "b")), "rows 0 to 3"),
        (OrderPlan((0, 1), ("a", "b"), (2,)), "demotes started"),
    ],
)
def test_an_order_outside_its_law_stops_the_run(
    plan: OrderPlan, problem: str, offer_queue: QueueView
) -> None:
    decider = Decider(Policies(Fixed(plan), GOVERNORS.create("tpot")), 0)
    with pytest.raises(PlanError, match=problem):
        decider.decide_order(offer_queue, 0.0)


@pytest.mark.parametrize(
    "plan",
    [
        StepPlan(StepKind.PREFILL, 65, "too much"),
        StepPlan(StepKind.PREFILL, -1, "negative"),
        StepPlan(StepKind.PREFILL, 0, "nothing"),
        StepPlan(StepKind.DECODE, 0, "nobody decodes"),
        StepPlan(StepKind.MIXED, 64, "cannot mix"),
    ],
)
def test_a_governor_outside_its_law_stops_the_run(plan: StepPlan, round_times: StepModel) -> None:
    decider = Decider(Policies(ORDERS.create("fcfs"), Fixed(plan)), 0)
    view = StepView(round_times, 0, 0, None, 100, 0, 0, 64, 4)
    with pytest.raises(PlanError, match="governor plans"):
        decider.decide_step(view)


@pytest.fixture
def offer_queue() -> QueueView:
    """Three rows, the last of them started; two are asked for."""
    floats = np.zeros(3)
    queue = QueueColumns(
        sequence=np.arange(3),
        arrival_s=floats,
        deadline_s=floats,
        service_s=floats,
        prompt_tokens=np.ones(3, dtype=np.int64),
        started=np.array([False, False, True]),
        demoted=np.zeros(3, dtype=np.bool_),
    )
    return QueueView(queue, EngineLoad(), 2)
