"""A log of decisions comes back as it was written."""

from __future__ import annotations

from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.slo.admission import AdmissionDecision, ArrivalView, Verdict
from bana.slo.budget import Budget
from bana.slo.decisions import (
    AdmissionRecord,
    GovernorRecord,
    LogHeader,
    LogLine,
    OrderRecord,
    PolicyChoice,
    decode_line,
    encode_line,
    record_queue,
    restore_queue,
    seed_decision,
)
from bana.slo.governor import StepKind, StepPlan, StepView
from bana.slo.order import EngineLoad, OrderPlan, QueueColumns, QueueView
from bana.slo.steps import StepModel

FINITE = st.floats(allow_nan=False, allow_infinity=False)
ROWS = st.lists(
    st.tuples(st.integers(0, 2**62), FINITE, FINITE, FINITE, st.integers(0, 2**40), st.booleans()),
    max_size=6,
)


def view_of(rows: list[tuple[int, float, float, float, int, bool]], inflation: float) -> QueueView:
    columns = [np.array(column) for column in zip(*rows, strict=True)] or [np.empty(0)] * 6
    kinds = (np.int64, np.float64, np.float64, np.float64, np.int64, np.bool_)
    typed = [column.astype(kind) for column, kind in zip(columns, kinds, strict=True)]
    queue = QueueColumns(*typed, ~typed[-1])
    return QueueView(queue, EngineLoad(inflation=inflation), head_rows=3)


@given(ROWS, FINITE, st.integers(0, 2**32 - 1), FINITE)
def test_an_order_comes_back_in_every_bit(
    rows: list[tuple[int, float, float, float, int, bool]],
    at_s: float,
    number: int,
    inflation: float,
) -> None:
    view = view_of(rows, inflation)
    plan = OrderPlan((1, 0), ("deadline", "demoted"), (2,))
    record = OrderRecord(number, at_s, record_queue(view), plan)
    back = decode_line(encode_line(record))
    assert back == record
    assert isinstance(back, OrderRecord)
    restored = restore_queue(back.view)
    for name in ("sequence", "arrival_s", "deadline_s", "service_s", "prompt_tokens"):
        written, read = getattr(view.queue, name), getattr(restored.queue, name)
        assert written.dtype == read.dtype
        assert written.tobytes() == read.tobytes()
    assert restored.queue.started.tolist() == view.queue.started.tolist()
    assert restored.queue.demoted.tolist() == view.queue.demoted.tolist()
    assert (restored.load, restored.head_rows) == (view.load, 3)


@pytest.mark.parametrize(
    "line",
    [
        LogHeader(7, PolicyChoice("budget", {"guard": 2.5}), None, PolicyChoice("accept")),
        GovernorRecord(
            number=1,
            view=StepView(StepModel(*[0.1] * 6), 2, 30, None, 40, 5, 6, 512, 16, can_mix=True),
            plan=StepPlan(StepKind.MIXED, 40, "full"),
        ),
        AdmissionRecord(
            number=2,
            at_s=0.1,
            view=ArrivalView(Budget("gold", 1.0, 0.3, 0.05, None), 0.2, 0.7, 1.5),
            plan=AdmissionDecision(Verdict.REJECTED_INFEASIBLE, "late", 2.5),
        ),
    ],
    ids=lambda line: line.__struct_config__.tag,
)
def test_every_other_line_comes_back(line: LogLine) -> None:
    assert decode_line(encode_line(line)) == line
    assert b"\n" not in encode_line(line)


@pytest.mark.parametrize("text", [b"", b"{}", b'{"kind": "other"}', b'{"kind": "governor"}'])
def test_what_is_no_line_is_refused(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_line(text)


def test_a_decision_draws_the_same_whatever_was_drawn_before() -> None:
    rng, other = Random(1), Random(2)
    other.random()
    seed_decision(rng, 5, 9)
    seed_decision(other, 5, 9)
    drawn = rng.random()
    assert other.random() == drawn
    for seed, number in ((5, 8), (4, 9), (9, 5)):
        seed_decision(other, seed, number)
        assert other.random() != drawn
