"""Policies asked by an engine: excused when they fail, recorded so that they can be asked again."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from bana.slo.admission import ADMISSION, ArrivalView, Verdict
from bana.slo.budget import Budget
from bana.slo.decisions import LogHeader, OrderRecord, decode_line, restore_queue, seed_decision
from bana.slo.order import EngineLoad, OrderPlan, QueueColumns, QueueView
from sglang_bana.engine.scheduling.counts import PassCounts
from sglang_bana.engine.scheduling.decision_log import DecisionLog
from sglang_bana.engine.scheduling.panel import Panel
from sglang_bana.policies import Policies

SEED = 5
ARRIVAL = ArrivalView(Budget("standard", 0.0, 1.0, 0.1), service_s=0.1, ahead_s=0.0, inflation=1.0)


class Shuffling:
    """An order that draws."""

    def decide_order(self, view: QueueView, now_s: float, rng: Random) -> OrderPlan:
        rows = list(range(view.queue.sequence.size))
        rng.shuffle(rows)
        return OrderPlan(tuple(rows[: view.head_rows]), ("drawn",) * min(len(rows), view.head_rows))


class Failing:
    """A policy that never answers."""

    def decide_order(self, view: QueueView, now_s: float, rng: Random) -> OrderPlan:
        raise RuntimeError("no idea")

    def decide_admission(self, view: ArrivalView, now_s: float) -> None:
        raise RuntimeError("no idea")


def view_of(rows: int) -> QueueView:
    numbers = np.arange(rows)
    flags = np.zeros(rows, np.bool_)
    times_s = numbers / 3.0
    queue = QueueColumns(numbers, times_s, times_s + 1, times_s / 7, numbers + 1, flags, flags)
    return QueueView(queue, EngineLoad(inflation=1.7), head_rows=4)


def panel_of(
    order: object, log: DecisionLog | None = None, admission: object | None = None
) -> tuple[Panel, PassCounts]:
    counts = PassCounts()
    policies = Policies(order, None, admission or ADMISSION.create("accept"))
    return Panel(policies, SEED, counts, log), counts


def test_a_failing_order_leaves_the_choice_and_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    panel, counts = panel_of(Failing())
    assert [panel.decide_order(view_of(3), 0.0) for _ in range(3)] == [None] * 3
    assert counts.faults == 3
    assert caplog.text.count("order policy failed") == 1


class Repeating:
    """An order that names one row twice."""

    def decide_order(self, view: QueueView, now_s: float, rng: Random) -> OrderPlan:
        return OrderPlan((0, 0), ("again", "again"))


def test_an_order_outside_its_law_counts_as_failed() -> None:
    panel, counts = panel_of(Repeating())
    assert panel.decide_order(view_of(3), 0.0) is None
    assert counts.faults == 1


def test_a_failing_admission_refuses_nobody() -> None:
    panel, counts = panel_of(None, admission=Failing())
    assert panel.decide_admission(ARRIVAL, 0.0).verdict is Verdict.ADMITTED
    assert counts.faults == 1


def test_a_question_without_a_policy_is_left_to_sglang() -> None:
    panel, counts = panel_of(None)
    assert panel.decide_order(view_of(3), 0.0) is None
    assert (panel.orders, panel.governs, counts.faults) == (False, False, 0)


def test_each_line_can_be_decided_again_alone(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path, 2**20, LogHeader(seed=SEED))
    panel, _ = panel_of(Shuffling(), log)
    plans = [panel.decide_order(view_of(rows), rows / 2) for rows in (9, 2, 30)]
    log.close()
    header, *records = map(decode_line, path.read_bytes().splitlines())
    assert header == LogHeader(seed=SEED)
    for record, plan in reversed(list(zip(records, plans, strict=True))):
        assert isinstance(record, OrderRecord)
        rng = Random()
        seed_decision(rng, SEED, record.number)
        again = Shuffling().decide_order(restore_queue(record.view), record.at_s, rng)
        assert again == record.plan == plan


def test_a_log_ends_at_its_bound_after_a_whole_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "decisions.jsonl"
    panel, counts = panel_of(Shuffling(), DecisionLog(path, 3000, LogHeader(seed=SEED)))
    for _ in range(200):
        assert panel.decide_order(view_of(6), 1.0) is not None
    assert 1000 < path.stat().st_size <= 3000
    assert len([decode_line(line) for line in path.read_bytes().splitlines()]) > 2
    assert caplog.text.count("decision log ends") == 1
    assert counts.faults == 0


def test_a_full_disk_ends_the_log_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    log = DecisionLog(Path("/dev/full"), 2**20, LogHeader(seed=SEED))
    panel, counts = panel_of(Shuffling(), log)
    assert panel.decide_order(view_of(6), 1.0) is not None
    assert "cannot be written" in caplog.text
    assert counts.faults == 0
