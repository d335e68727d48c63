"""The default order: deadlines first, early demotion, and a bounded share for the demoted."""

from __future__ import annotations

import dataclasses
from random import Random

import numpy as np
import pytest

from bana.slo.budget_order import MAX_DEMOTED
from bana.slo.order import (
    ORDERS,
    EngineLoad,
    OrderPlan,
    QueueColumns,
    QueueOrder,
    QueueView,
)


@dataclasses.dataclass(frozen=True)
class Row:
    """One waiting request of these tests, feasible unless said otherwise."""

    sequence: int
    arrival_s: float = 0.0
    deadline_s: float = 10.0
    service_s: float = 1.0
    started: bool = False
    demoted: bool = False


def _stack(rows: list[Row]) -> QueueColumns:
    columns = {
        f.name: np.array([getattr(r, f.name) for r in rows]) for f in dataclasses.fields(Row)
    }
    return QueueColumns(**columns, prompt_tokens=np.full(len(rows), 100))


def _build(**options: object) -> QueueOrder:
    return ORDERS.create("budget", options)


def _decide(
    rows: list[Row],
    *,
    now_s: float = 0.0,
    load: EngineLoad | None = None,
    head_rows: int = 8,
    **options: object,
) -> OrderPlan:
    view = QueueView(_stack(rows), load or EngineLoad(), head_rows)
    return _build(**options).decide_order(view, now_s, Random(0))


SPENT = EngineLoad(demoted_share=1.0)


def test_feasible_requests_run_by_deadline() -> None:
    rows = [Row(0, deadline_s=9.0), Row(1, deadline_s=7.0), Row(2, deadline_s=8.0)]
    assert _decide(rows) == OrderPlan((1, 2, 0), ("deadline",) * 3)


@pytest.mark.parametrize(
    ("service_s", "guard", "inflation", "now_s", "is_demoted"),
    [
        (8.0, 1.0, 1.0, 2.0, False),
        (8.125, 1.0, 1.0, 2.0, True),
        (4.0, 2.0, 1.0, 2.0, False),
        (4.125, 2.0, 1.0, 2.0, True),
        (2.0, 2.0, 2.0, 2.0, False),
        (2.0, 2.0, 2.0, 2.125, True),
        (0.0, 2.0, 2.0, 10.0, False),
        (0.0, 2.0, 2.0, 10.125, True),
    ],
)
def test_it_demotes_what_its_budget_no_longer_covers(
    service_s: float, guard: float, inflation: float, now_s: float, is_demoted: bool
) -> None:
    load = EngineLoad(inflation)
    plan = _decide([Row(0, service_s=service_s)], now_s=now_s, load=load, guard=guard)
    assert plan.demote == ((0,) if is_demoted else ())
    assert plan.reasons == (("demoted",) if is_demoted else ("deadline",))


def test_the_nearly_full_engine_does_not_demote() -> None:
    assert _decide([Row(0, service_s=5.0)], load=EngineLoad(1.0, 9.0)).demote == ()


def test_what_started_goes_on_though_late() -> None:
    rows = [Row(0, deadline_s=9.0), Row(1, deadline_s=-5.0, started=True)]
    assert _decide(rows) == OrderPlan((1, 0), ("deadline",) * 2)


def test_the_walk_ends_with_a_full_head() -> None:
    # Rows 1 and 3 are late; only 1 stands before the last one of the head.
    rows = [Row(0, deadline_s=5.0), Row(1, deadline_s=5.5, service_s=9.0)]
    rows += [Row(2, deadline_s=6.0), Row(3, deadline_s=7.0, service_s=9.0), Row(4, deadline_s=8.0)]
    assert _decide(rows, head_rows=2, load=SPENT) == OrderPlan((0, 2), ("deadline",) * 2, (1,))
    assert _decide(rows, head_rows=1, load=SPENT) == OrderPlan((0,), ("deadline",))
    whole = _decide(rows, head_rows=5, load=SPENT)
    assert whole == OrderPlan((0, 2, 4, 1, 3), ("deadline",) * 3 + ("demoted",) * 2, (1, 3))


def test_the_demoted_run_oldest_first_and_begun_ones_before() -> None:
    late = {"deadline_s": -1.0, "demoted": True}
    rows = [Row(7, arrival_s=2.0, service_s=0.1, **late), Row(8, arrival_s=1.0, **late)]
    rows += [Row(9, arrival_s=3.0, started=True, **late), Row(5, arrival_s=2.0, **late)]
    assert _decide(rows) == OrderPlan((2, 1, 3, 0), ("demoted",) * 4)


def test_a_demoted_request_leads_until_the_share_is_used_up() -> None:
    rows = [Row(0), Row(1, deadline_s=-1.0, demoted=True), Row(2, deadline_s=-1.0, demoted=True)]
    leading = _decide(rows, load=EngineLoad(demoted_share=0.0999), demoted_share=0.1)
    assert leading == OrderPlan((1, 0, 2), ("demoted_share", "deadline", "demoted"))
    spent = _decide(rows, load=EngineLoad(demoted_share=0.1), demoted_share=0.1)
    assert spent == OrderPlan((0, 1, 2), ("deadline", "demoted", "demoted"))
    assert _decide(rows, demoted_share=0.0).head == (0, 1, 2)
    # A short head has room for the one that leads only.
    assert _decide(rows, head_rows=1, demoted_share=0.1).reasons == ("demoted_share",)


def test_a_plan_tells_who_runs_although_lost() -> None:
    rows = [Row(0), Row(1, deadline_s=-1.0, demoted=True), Row(2, deadline_s=9.0, demoted=True)]
    leading = _decide(rows, demoted_share=0.1)
    assert leading.reasons == ("demoted_share", "restored", "deadline")
    assert (leading.lost_rows, leading.passed_over) == ({1}, 1)
    spent = _decide(rows, load=EngineLoad(demoted_share=0.1), demoted_share=0.1)
    assert (spent.lost_rows, spent.passed_over) == ({1}, None)
    # Where nothing else waits there is nobody to go on instead.
    alone = _decide(rows[1:2], demoted_share=0.1)
    assert (alone.reasons, alone.lost_rows, alone.passed_over) == (("demoted",), {0}, None)


def test_who_is_demoted_now_may_lead_at_once() -> None:
    rows = [Row(0), Row(1, deadline_s=0.5)]
    plan = _decide(rows, demoted_share=0.1)
    assert plan == OrderPlan((1, 0), ("demoted_share", "deadline"), (1,))


def test_many_are_demoted_by_and_by_and_whoever_may_run_at_once() -> None:
    # The oldest, which lead, stand last.
    rows = [Row(n, arrival_s=-float(n), deadline_s=-1.0) for n in range(3 * MAX_DEMOTED)]
    for _ in range(3):
        plan = _decide(rows)
        assert plan.head == tuple(range(len(rows) - 1, len(rows) - 9, -1))
        fresh = {row for row in plan.head if not rows[row].demoted}
        assert fresh <= set(plan.demote)
        assert MAX_DEMOTED - 8 <= len(plan.demote) <= MAX_DEMOTED + 8
        for row in plan.demote:
            rows[row] = dataclasses.replace(rows[row], demoted=True)
    assert all(row.demoted for row in rows)


def test_a_demoted_request_that_became_feasible_is_ordered_by_its_deadline() -> None:
    rows = [Row(0, deadline_s=9.0), Row(1, deadline_s=8.0, service_s=3.0, demoted=True)]
    busy = _decide(rows, load=EngineLoad(2.0, demoted_share=1.0))
    assert busy == OrderPlan((0, 1), ("deadline", "demoted"))
    calm = _decide(rows, load=EngineLoad(1.0, demoted_share=1.0))
    assert calm == OrderPlan((1, 0), ("restored", "deadline"))


@dataclasses.dataclass
class Engine:
    """One request a second, whichever comes first, with a new feasible one each second.

    `weight` is that of one request in the recent share of the demoted.
    """

    policy: QueueOrder
    rows: list[Row]
    weight: float = 0.1
    now_s: float = 0.0
    share: float = 0.0

    def serve(self) -> Row:
        """Let one arrive, then serve the head."""
        sequence = 1_000_000 + int(self.now_s)
        self.rows.append(Row(sequence, self.now_s, self.now_s + 5.0))
        load = EngineLoad(demoted_share=self.share)
        view = QueueView(_stack(self.rows), load, 4)
        plan = self.policy.decide_order(view, self.now_s, Random(0))
        for row in plan.demote:
            self.rows[row] = dataclasses.replace(self.rows[row], demoted=True)
        served = self.rows.pop(plan.head[0])
        self.share += self.weight * (served.demoted - self.share)
        self.now_s += 1.0
        return served


def _lost(count: int) -> list[Row]:
    return [Row(n, arrival_s=n / 1e3 - 50.0, deadline_s=-1.0) for n in range(count)]


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2])
def test_the_demoted_are_served_under_an_endless_stream_of_feasible_ones(share: float) -> None:
    engine = Engine(_build(demoted_share=share), _lost(5))
    # From full to below the share: (1 - weight) ** n < share, for each of the five.
    bound = 5 * (int(np.log(share) / np.log(1 - engine.weight)) + 2)
    served = [engine.serve().sequence for _ in range(bound)]
    assert [n for n in served if n < 5] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_the_demoted_get_their_share_and_no_more(share: float) -> None:
    engine = Engine(_build(demoted_share=share), _lost(200), weight=0.02)
    demoted = [engine.serve().demoted for _ in range(500)]
    assert np.mean(demoted[100:]) == pytest.approx(share, rel=0.2)


def test_without_a_share_the_demoted_wait_for_an_empty_queue() -> None:
    engine = Engine(_build(demoted_share=0.0), _lost(5))
    assert not any(engine.serve().demoted for _ in range(200))
