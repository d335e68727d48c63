"""The law of queue orders, held against whatever is registered."""

from __future__ import annotations

import dataclasses
import functools
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.slo.order import (
    DEFAULT_ORDER,
    ORDERS,
    EngineLoad,
    OrderPlan,
    QueueColumns,
    QueueOrder,
    QueueView,
)

ALL = pytest.mark.parametrize("name", ORDERS.names())
# A few values make ties, the rest reaches the extremes that budgets and predictions are held to.
SECONDS = st.sampled_from([0.0, 0.5, 1.0, 2.0]) | st.floats(0, 1e10)
LIMITS = st.sampled_from([0.5, 1.0, 10.0]) | st.floats(1e-9, 86_400)
ROWS = st.tuples(SECONDS, LIMITS, SECONDS, st.integers(0, 2**40), st.booleans(), st.booleans())
LOADS = st.builds(
    EngineLoad,
    inflation=st.floats(1, 1e9),
    full_inflation=st.floats(1, 1e9),
    demoted_share=st.floats(0, 1),
)


@functools.cache
def _build(name: str, copy: int = 0) -> QueueOrder:
    """Policy `name`; another `copy` is another object. Looking for entry points takes its time."""
    return ORDERS.create(name)


@st.composite
def queues(draw: st.DrawFn, least: int = 0) -> QueueColumns:
    """Any queue that an adapter may build, extremes included."""
    rows = draw(st.lists(ROWS, min_size=least, max_size=12))
    sequence = draw(st.permutations(range(len(rows))))
    columns = list(zip(*rows, strict=True)) or [()] * 6
    arrival_s = np.array(columns[0], dtype=np.float64)
    return QueueColumns(
        sequence=np.array(sequence, dtype=np.int64),
        arrival_s=arrival_s,
        deadline_s=arrival_s + np.array(columns[1], dtype=np.float64),
        service_s=np.array(columns[2], dtype=np.float64),
        prompt_tokens=np.array(columns[3], dtype=np.int64),
        started=np.array(columns[4], dtype=np.bool_),
        demoted=np.array(columns[5], dtype=np.bool_),
    )


VIEWS = st.builds(QueueView, queues(), LOADS, st.integers(1, 16) | st.just(2**40))


def _select(queue: QueueColumns, kept: list[int]) -> QueueColumns:
    fields = dataclasses.fields(queue)
    return QueueColumns(**{f.name: getattr(queue, f.name)[kept] for f in fields})


def _flag(queue: QueueColumns, plan: OrderPlan) -> QueueColumns:
    demoted = queue.demoted.copy()
    demoted[list(plan.demote)] = True
    return dataclasses.replace(queue, demoted=demoted)


@ALL
@settings(deadline=None)
@given(view=VIEWS, now_s=SECONDS, seed=st.integers(0, 2**32))
def test_the_plan_is_as_its_record_says(
    name: str, view: QueueView, now_s: float, seed: int
) -> None:
    plan = _build(name).decide_order(view, now_s, Random(seed))
    rows = range(view.queue.sequence.size)
    assert len(plan.head) == min(view.head_rows, len(rows))
    assert len(set(plan.head)) == len(plan.head)
    assert set(plan.head) <= set(rows)
    assert len(plan.reasons) == len(plan.head)
    assert all(0 < len(reason) <= 64 for reason in plan.reasons)
    assert all(type(row) is int for row in (*plan.head, *plan.demote))


@ALL
@settings(deadline=None)
@given(view=VIEWS, now_s=SECONDS, seed=st.integers(0, 2**32))
def test_only_what_neither_started_nor_was_demoted_is_demoted(
    name: str, view: QueueView, now_s: float, seed: int
) -> None:
    plan = _build(name).decide_order(view, now_s, Random(seed))
    queue = view.queue
    free = set(np.flatnonzero(~queue.started & ~queue.demoted).tolist())
    assert set(plan.demote) <= free
    assert len(set(plan.demote)) == len(plan.demote)


@ALL
@settings(deadline=None)
@given(view=VIEWS, now_s=SECONDS, seed=st.integers(0, 2**32))
def test_equal_inputs_give_equal_answers_and_stay_as_they_are(
    name: str, view: QueueView, now_s: float, seed: int
) -> None:
    for column in dataclasses.fields(view.queue):
        getattr(view.queue, column.name).flags.writeable = False
    policy = _build(name)
    first = policy.decide_order(view, now_s, Random(seed))
    assert policy.decide_order(view, now_s, Random(seed)) == first
    assert _build(name, 1).decide_order(view, now_s, Random(seed)) == first


@ALL
@settings(deadline=None)
@given(queue=queues(least=1), load=LOADS, head_rows=st.integers(1, 4), step_s=st.floats(0, 100))
def test_serving_the_head_empties_any_queue_and_nobody_is_demoted_twice(
    name: str, queue: QueueColumns, load: EngineLoad, head_rows: int, step_s: float
) -> None:
    policy, now_s = _build(name), 0.0
    demoted = set(queue.sequence[queue.demoted].tolist())
    for left in range(queue.sequence.size, 0, -1):
        assert queue.sequence.size == left
        plan = policy.decide_order(QueueView(queue, load, head_rows), now_s, Random(0))
        newly = queue.sequence[list(plan.demote)].tolist()
        assert not demoted & set(newly)
        demoted.update(newly)
        kept = [row for row in range(left) if row != plan.head[0]]
        queue, now_s = _select(_flag(queue, plan), kept), now_s + step_s
    assert queue.sequence.size == 0


def test_the_default_is_registered() -> None:
    assert DEFAULT_ORDER in ORDERS.names()
