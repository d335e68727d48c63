from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bana.eval.client.call import Call, Conclusion
from bana.eval.client.events import NativeReader
from bana.eval.client.validity import judge_validity, measure_lateness
from bana.eval.requests import Ending, Observed


def sent_late(make_workload: Any, *late_s: float | None) -> list[Observed]:
    found = []
    for offered, late in zip(make_workload(len(late_s)).requests, late_s, strict=True):
        call = Call(0.0, offered, "id", NativeReader())
        call.conclude(1.0, Conclusion(Ending.UNFINISHED))
        sent_s = None if late is None else offered.due_s + late
        found.append(msgspec.structs.replace(call.observe(0.0), sent_s=sent_s))
    return found


def test_lateness_is_judged_by_its_p99(make_plan: Any, make_workload: Any) -> None:
    plan = make_plan("http://h", lateness_limit_s=0.05)

    assert judge_validity(sent_late(make_workload, *[0.01] * 199, 0.5), plan).is_valid
    late = judge_validity(sent_late(make_workload, *[0.01] * 97, *[0.5] * 3), plan)
    assert not late.is_valid
    assert "p99 500.0 ms after the schedule, allowed 50 ms" in late.reasons[0]


def test_what_was_not_sent_is_said(make_plan: Any, make_workload: Any) -> None:
    plan = make_plan("http://h", max_outstanding=7)
    found = judge_validity(sent_late(make_workload, 0.0, None), plan)

    assert not found.is_valid
    assert "1 of 2 requests were not sent, since 7 others were out" in found.reasons[0]


def test_nothing_offered_proves_nothing(make_plan: Any) -> None:
    assert judge_validity([], make_plan("http://h")).reasons == ("no request was offered",)


def test_lateness_of_what_was_sent(make_workload: Any) -> None:
    assert measure_lateness(sent_late(make_workload, 0.1, None, 0.3)) == pytest.approx(0.3)
    assert measure_lateness(sent_late(make_workload, None)) is None
