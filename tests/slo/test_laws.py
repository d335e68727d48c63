"""Answers outside their law are refused before they can break whoever asked."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from bana.slo.errors import PlanError
from bana.slo.fetching import RestoreView
from bana.slo.governor import StepKind, StepPlan, StepView
from bana.slo.laws import require_order, require_restore, require_step
from bana.slo.restore_plan import RestorePlan, RestoreReason
from bana.slo.steps import StepModel
from bana.slo.waiting import EngineLoad, OrderPlan, QueueColumns, QueueView

STARTED = 3
MODEL = StepModel(0.01, 0.001, 0.0, 0.01, 0.001, 0.0)
STEP = StepView(
    model=MODEL,
    decode_requests=1,
    context_tokens=10,
    tightest_tpot_s=0.1,
    prefill_tokens=50,
    prefix_tokens=0,
    decodes_since_prefill=0,
    max_chunk_tokens=64,
    page_tokens=4,
)
RESTORE = RestoreView(
    asked_s=0.0,
    deadline_s=9.0,
    prompt_tokens=64,
    device_tokens=0,
    page_tokens=4,
    page_bytes=8,
    known=b"\x02\x02",
    arrived_pages=1,
    coming_pages=1,
    is_settled=False,
    prices=None,
    delayed_requests=0,
    tiers=(),
)


def view_of(rows: int, head_rows: int = 2) -> QueueView:
    numbers, times_s = np.arange(rows), np.arange(rows) / 3
    started = numbers == STARTED
    queue = QueueColumns(numbers, times_s, times_s, times_s, numbers + 1, started, ~started & False)
    return QueueView(queue, EngineLoad(), head_rows)


def plan_of(*head: int, demote: tuple[int, ...] = ()) -> OrderPlan:
    return OrderPlan(head, ("why",) * len(head), demote)


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (plan_of(), r"0 rows .* allowed: 2 of 5"),
        (plan_of(1), r"1 rows"),
        (plan_of(1, 1), r"2 rows \(1 distinct\)"),
        (OrderPlan((0, 1), ("why",)), r"1 reasons"),
        (plan_of(0, 5), r"rows 0 to 5, allowed: 0 to 4"),
        (plan_of(-1, 1), r"rows -1 to 1"),
        (plan_of(0, 1, demote=(7,)), r"to 7"),
        (plan_of(0, 1, demote=(2, STARTED)), r"demotes started requests: 2, 3"),
    ],
)
def test_an_order_is_a_head_of_the_queue(plan: OrderPlan, problem: str) -> None:
    with pytest.raises(PlanError, match=problem):
        require_order(plan, view_of(5))


def test_an_order_within_its_law_is_given_back() -> None:
    plan = plan_of(4, 0, demote=(1, 2))
    assert require_order(plan, view_of(5)) is plan
    assert require_order(plan_of(), view_of(0)) == plan_of()


@pytest.mark.parametrize(
    ("plan", "changes", "problem"),
    [
        (StepPlan(StepKind.PREFILL, 65, ""), {}, "65 prompt tokens, allowed: 0 to 64"),
        (StepPlan(StepKind.PREFILL, -1, ""), {}, "-1 prompt tokens"),
        (StepPlan(StepKind.PREFILL, 0, ""), {}, "without a prompt token"),
        (StepPlan(StepKind.MIXED, 8, ""), {}, "cannot mix"),
        (StepPlan(StepKind.DECODE, 0, ""), {"decode_requests": 0}, "where nothing decodes"),
    ],
)
def test_a_step_does_what_can_be_done(
    plan: StepPlan, changes: dict[str, int], problem: str
) -> None:
    with pytest.raises(PlanError, match=problem):
        require_step(plan, msgspec.structs.replace(STEP, **changes))


def test_a_step_within_its_law_is_given_back() -> None:
    plan = StepPlan(StepKind.PREFILL, 8, "")
    assert require_step(plan, STEP) is plan


@pytest.mark.parametrize(
    ("pages", "until_s", "changes", "problem"),
    [
        (0, 1.0, {}, "waits for 0 pages, allowed: 1"),
        (4, 1.0, {}, "to 3 that may come"),
        (2, float("inf"), {}, "a finite time"),
        (1, 2.0, {"is_settled": True}, "no later than now"),
    ],
)
def test_a_wait_is_for_what_may_come(
    pages: int, until_s: float, changes: dict[str, bool], problem: str
) -> None:
    view = msgspec.structs.replace(RESTORE, **changes)
    with pytest.raises(PlanError, match=problem):
        require_restore(RestorePlan(pages, until_s, RestoreReason.FIXED), view, 0.5)
