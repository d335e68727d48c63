"""What became of budgets, class by class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH, Req

from bana.slo.budget import Budget, BudgetOutcome, Limit
from bana.slo.wire import Tally
from sglang_bana.engine.scheduling.outcomes import (
    MAX_CLASSES,
    OTHER_CLASS,
    SLACK_BOUNDS_S,
    TPOT_BOUNDS_S,
    TTFT_BOUNDS_S,
    Histogram,
    Outcomes,
    is_own,
)
from sglang_bana.engine.scheduling.waiting_room import Standing

from .asks import ask


def stand(req: Req, *, arrival_s: float = 0.0, slo_class: str = "standard") -> Req:
    """`req` with a first token due after 2 s and a TPOT of 0.5 s."""
    req.bana = Standing(Budget(slo_class, arrival_s, 2.0, 0.5), 0)
    return req


def answer(outcomes: Outcomes, req: Req, token_times_s: list[float], ending: Any = None) -> None:
    """One token at each of these times; the last one ends it."""
    for place, now_s in enumerate(token_times_s, start=1):
        req.output_ids.append(7)
        if place == len(token_times_s):
            req.finished_reason = ending or FINISH_LENGTH(place)
        outcomes.note_tokens([req], now_s)


def test_values_are_counted_between_their_bounds() -> None:
    histogram = Histogram((1.0, 2.0))
    for value_s in (-5.0, 1.0, 1.5, 2.0, 2.5, 99.0):
        histogram.add(value_s)
    assert histogram.report() == Tally((1.0, 2.0), (2, 2, 2), 101.0)


def test_an_answer_is_judged_by_its_budget() -> None:
    outcomes = Outcomes()
    met, late = stand(ask("a", 4)), stand(ask("b", 4))
    answer(outcomes, met, [1.0, 1.5, 2.0])
    answer(outcomes, late, [3.0, 3.2])
    assert met.bana.outcome == BudgetOutcome(1.0, 0.5, 1.0, (Limit.TTFT, Limit.TPOT), ())
    report = outcomes.report()["standard"]
    assert (report.answered, report.met, report.missed) == (2, 1, {"ttft": 1})
    assert report.ttft.counts[TTFT_BOUNDS_S.index(1.0)] == 1
    assert sum(report.tpot.counts) == 2
    assert report.tpot.bounds_s == TPOT_BOUNDS_S


def test_one_token_has_no_tpot() -> None:
    outcomes = Outcomes()
    answer(outcomes, stand(ask("a", 4)), [1.0])
    report = outcomes.report()["standard"]
    assert (report.answered, report.met, sum(report.tpot.counts)) == (1, 1, 0)


def test_an_answer_is_counted_once_however_often_it_is_seen() -> None:
    outcomes, req = Outcomes(), stand(ask("a", 4))
    answer(outcomes, req, [1.0, 1.2])
    outcomes.note_tokens([req], 9.0)
    assert outcomes.report()["standard"].answered == 1
    assert req.bana.outcome.ttft_s == 1.0


def test_before_its_first_token_nothing_is_known() -> None:
    outcomes, req = Outcomes(), stand(ask("a", 4))
    outcomes.note_tokens([req, ask("no standing", 4)], 1.0)
    assert (req.bana.first_token_s, outcomes.report()) == (None, {})


def test_what_was_aborted_is_judged_but_not_counted() -> None:
    outcomes, req = Outcomes(), stand(ask("a", 4))
    answer(outcomes, req, [1.0, 1.2], FINISH_ABORT())
    assert req.bana.outcome is not None
    assert outcomes.report() == {}


@pytest.mark.parametrize(
    ("rid", "own"),
    [("HEALTH_CHECK_1", True), ("bana-calibration-1", True), ("a HEALTH_CHECK", False)],
)
def test_probes_are_nobodys_requests(rid: str, own: bool) -> None:
    outcomes, req = Outcomes(), stand(ask(rid, 4))
    answer(outcomes, req, [1.0])
    assert is_own(req) is own
    assert bool(outcomes.report()) is not own


def test_classes_are_apart_and_capped() -> None:
    outcomes = Outcomes()
    names = [f"class{i}" for i in range(MAX_CLASSES + 3)]
    for name in names:
        outcomes.book(name).yielded += 1
    report = outcomes.report()
    assert len(report) == MAX_CLASSES + 1
    assert report["class0"].yielded == 1
    assert report[OTHER_CLASS].yielded == 3
    assert outcomes.book(names[0]) is outcomes.book(names[0])


def test_the_demoted_are_counted_by_class() -> None:
    outcomes = Outcomes()
    numbers = [outcomes.number(name) for name in ("a", "b", "a", "c")]
    outcomes.note_demoted(np.array([numbers[0], numbers[2], numbers[3]]))
    outcomes.note_demoted(np.array([], dtype=np.int64))
    assert {name: book.demoted for name, book in outcomes.report().items()} == {
        "a": 2,
        "b": 0,
        "c": 1,
    }


def test_everything_of_a_class_is_reported() -> None:
    outcomes = Outcomes()
    book = outcomes.book("batch")
    book.demoted, book.yielded, book.rejected = 1, 2, 3
    book.slack.add(-0.25)
    report = outcomes.report()["batch"]
    assert (report.demoted, report.yielded, report.rejected) == (1, 2, 3)
    assert report.slack.counts[SLACK_BOUNDS_S.index(0.0)] == 1
    assert (report.answered, report.met, report.missed) == (0, 0, {})
