"""Each order puts first what it says, and gives the same plan as a plain sort would."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.slo.errors import ConfigError
from bana.slo.order import ORDERS, EngineLoad, OrderPlan, QueueColumns, QueueView

BUILT_IN = ["budget", "cascade", "fcfs", "edf", "sjf"]
EACH = pytest.mark.parametrize("order", BUILT_IN)
DEFAULTS = {order: ORDERS.create(order) for order in BUILT_IN}


@dataclasses.dataclass(frozen=True)
class Row:
    """One waiting request of these tests."""

    sequence: int
    arrival_s: float = 0.0
    deadline_s: float = 10.0
    service_s: float = 1.0
    started: bool = False
    demoted: bool = False


def _stack(rows: list[Row]) -> QueueColumns:
    return QueueColumns(
        sequence=np.array([r.sequence for r in rows], dtype=np.int64),
        arrival_s=np.array([r.arrival_s for r in rows], dtype=np.float64),
        deadline_s=np.array([r.deadline_s for r in rows], dtype=np.float64),
        service_s=np.array([r.service_s for r in rows], dtype=np.float64),
        prompt_tokens=np.full(len(rows), 100, dtype=np.int64),
        started=np.array([r.started for r in rows], dtype=np.bool_),
        demoted=np.array([r.demoted for r in rows], dtype=np.bool_),
    )


def _decide(
    order: str,
    rows: list[Row],
    *,
    now_s: float = 0.0,
    load: EngineLoad | None = None,
    head_rows: int = 8,
    **options: object,
) -> OrderPlan:
    view = QueueView(_stack(rows), load or EngineLoad(), head_rows)
    policy = ORDERS.create(order, options) if options else DEFAULTS[order]
    return policy.decide_order(view, now_s, Random(0))


# The models: one request at a time, by whole sorts.


def _model_key(key: Callable[[Row], float], reason: str, rows: list[Row], size: int) -> OrderPlan:
    ranked = sorted(range(len(rows)), key=lambda i: (key(rows[i]), rows[i].sequence))[:size]
    return OrderPlan(tuple(ranked), (reason,) * len(ranked))


def _model_budget(rows: list[Row], now_s: float, load: EngineLoad, size: int) -> OrderPlan:
    """With a guard of 2 and a share of 0.02."""
    late = [now_s + r.service_s * (2.0 * load.inflation) > r.deadline_s for r in rows]
    front: list[int] = []
    demote: list[int] = []
    for i in sorted(range(len(rows)), key=lambda i: (rows[i].deadline_s, rows[i].sequence)):
        if len(front) == size:
            break
        if (rows[i].started and not rows[i].demoted) or not late[i]:
            front.append(i)
        elif not rows[i].demoted:
            demote.append(i)
    back = [i for i, r in enumerate(rows) if r.demoted and late[i]] + demote
    back.sort(key=lambda i: (not rows[i].started, rows[i].arrival_s, rows[i].sequence))
    lead = back[:1] if front and load.demoted_share < 0.02 else []
    reasoned = [(i, "demoted_share") for i in lead]
    reasoned += [(i, "restored" if rows[i].demoted else "deadline") for i in front]
    reasoned += [(i, "demoted") for i in back[len(lead) :]]
    head, reasons = zip(*reasoned[:size], strict=True) if reasoned else ((), ())
    return OrderPlan(head, reasons, tuple(sorted(demote)))


def _model(order: str, rows: list[Row], now_s: float, load: EngineLoad, size: int) -> OrderPlan:
    inflation = (load.inflation + load.full_inflation) / 2
    keys: dict[str, tuple[Callable[[Row], float], str]] = {
        "fcfs": (lambda r: r.arrival_s, "arrival"),
        "edf": (lambda r: r.deadline_s, "deadline"),
        "sjf": (lambda r: r.service_s, "service"),
        "cascade": (
            lambda r: r.deadline_s - now_s - r.service_s * (inflation * 1.2),
            "smallest_budget",
        ),
    }
    if order == "budget":
        return _model_budget(rows, now_s, load, size)
    return _model_key(*keys[order], rows, size)


COARSE = st.sampled_from([0.0, 1.0, 2.0, 3.0])
SECONDS = COARSE | st.floats(0, 100)
LOADS = st.builds(
    EngineLoad,
    st.sampled_from([1.0, 2.0]) | st.floats(1, 5),
    st.floats(1, 5),
    st.sampled_from([0.0, 0.02, 0.5]),
)


@st.composite
def queues(draw: st.DrawFn) -> list[Row]:
    """Rows in any placement, many of them equal in some key."""
    sequence = draw(st.permutations(range(draw(st.integers(0, 30)))))
    return [
        Row(n, draw(SECONDS), draw(SECONDS), draw(COARSE), draw(st.booleans()), draw(st.booleans()))
        for n in sequence
    ]


@EACH
@settings(deadline=None)
@given(rows=queues(), now_s=COARSE, load=LOADS, size=st.integers(1, 35))
def test_each_order_plans_as_its_model(
    order: str, rows: list[Row], now_s: float, load: EngineLoad, size: int
) -> None:
    plan = _decide(order, rows, now_s=now_s, load=load, head_rows=size)
    assert plan == _model(order, rows, now_s, load, size)


@EACH
@pytest.mark.parametrize("seed", [1, 2])
def test_ten_thousand_rows_are_planned_as_a_few(order: str, seed: int) -> None:
    rng = Random(seed)
    rows = [
        Row(
            n,
            float(rng.randrange(50)),
            float(rng.randrange(40, 200)),
            rng.choice([0.5, 1.0, 4.0, 30.0]),
            rng.random() < 0.01,
            rng.random() < 0.1,
        )
        for n in rng.sample(range(10_000), 10_000)
    ]
    load = EngineLoad(2.0, 3.0, 0.01)
    for size in (1, 32, 500):
        plan = _decide(order, rows, now_s=30.0, load=load, head_rows=size)
        assert plan == _model(order, rows, 30.0, load, size)


@EACH
@settings(deadline=None)
@given(rows=queues(), load=LOADS, rng=st.randoms(use_true_random=False))
def test_the_placement_of_rows_does_not_matter(
    order: str, rows: list[Row], load: EngineLoad, rng: Random
) -> None:
    placed = sorted(rows, key=lambda r: r.sequence)
    shuffled = rng.sample(rows, len(rows))
    plans = [(kept, _decide(order, kept, now_s=1.0, load=load)) for kept in (placed, shuffled)]
    heads = [[kept[i].sequence for i in plan.head] for kept, plan in plans]
    demoted = [{kept[i].sequence for i in plan.demote} for kept, plan in plans]
    assert heads[0] == heads[1]
    assert demoted[0] == demoted[1]


@EACH
def test_equal_requests_run_in_order_of_arrival(order: str) -> None:
    sequences = Random(5).sample(range(100), 100)
    plan = _decide(order, [Row(n) for n in sequences], head_rows=10)
    assert [sequences[i] for i in plan.head] == list(range(10))
    late = [Row(n, deadline_s=-5.0) for n in sequences]
    assert [sequences[i] for i in _decide(order, late, head_rows=10).head] == list(range(10))


def test_cascade_takes_the_smallest_budget() -> None:
    # Budgets 10 - 4 = 6 and 8 - 1 = 7 at gamma 1; the deadlines alone say otherwise.
    rows = [Row(0, deadline_s=10.0, service_s=4.0), Row(1, deadline_s=8.0, service_s=1.0)]
    assert _decide("cascade", rows, gamma=1.0).head == (0, 1)
    assert _decide("cascade", rows, gamma=0.0).head == (1, 0)
    # Half of the present load and half of the full one: (1 + 3) / 2 = 2 times.
    close = [Row(0, deadline_s=10.0, service_s=4.0), Row(1, deadline_s=3.5, service_s=1.0)]
    assert _decide("cascade", close, gamma=1.0).head == (1, 0)
    assert _decide("cascade", close, load=EngineLoad(1.0, 3.5), gamma=1.0).head == (0, 1)


@pytest.mark.parametrize(
    ("order", "options"),
    [
        ("budget", {"guard": -0.1}),
        ("budget", {"guard": float("nan")}),
        ("budget", {"guard": 11.0}),
        ("budget", {"demoted_share": -0.1}),
        ("budget", {"demoted_share": 0.6}),
        ("cascade", {"gamma": -1.0}),
        ("cascade", {"gamma": float("inf")}),
        ("fcfs", {"guard": 1.0}),
        ("edf", {"gamma": 1.0}),
    ],
)
def test_options_are_checked(order: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ORDERS.create(order, options)
