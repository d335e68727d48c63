"""The law of admission policies, held against whatever is registered."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.slo.admission import ADMISSION, DEFAULT_ADMISSION, Admission, ArrivalView, Verdict
from bana.slo.budget import Budget

ALL = pytest.mark.parametrize("name", ADMISSION.names())
SECONDS = st.sampled_from([0.0, 0.5, 1.0, 2.0]) | st.floats(0, 1e10)
LIMITS = st.sampled_from([0.5, 1.0]) | st.floats(1e-9, 86_400)
BUDGETS = st.builds(Budget, st.just("standard"), SECONDS, LIMITS, LIMITS, st.none() | LIMITS)
VIEWS = st.builds(ArrivalView, BUDGETS, SECONDS, SECONDS, st.floats(1, 1e9))


@functools.cache
def _build(name: str, copy: int = 0) -> Admission:
    """Policy `name`; another `copy` is another object. Looking for entry points takes its time."""
    return ADMISSION.create(name)


@ALL
@settings(deadline=None)
@given(view=VIEWS, now_s=SECONDS)
def test_a_refusal_says_when_to_come_again_and_only_a_refusal(
    name: str, view: ArrivalView, now_s: float
) -> None:
    decision = _build(name).decide_admission(view, now_s)
    assert 0 < len(decision.reason) <= 64
    if decision.verdict is Verdict.ADMITTED:
        assert decision.retry_after_s is None
    else:
        assert decision.retry_after_s is not None
        assert 0 < decision.retry_after_s < float("inf")


@ALL
@settings(deadline=None)
@given(view=VIEWS, now_s=SECONDS)
def test_equal_inputs_give_equal_answers(name: str, view: ArrivalView, now_s: float) -> None:
    policy = _build(name)
    first = policy.decide_admission(view, now_s)
    assert policy.decide_admission(view, now_s) == first
    assert _build(name, 1).decide_admission(view, now_s) == first


@ALL
def test_an_idle_engine_takes_what_it_can_answer_in_time(name: str) -> None:
    view = ArrivalView(Budget("standard", 5.0, 1.0, 0.1), 0.01, 0.0, 1.0)
    assert _build(name, 1).decide_admission(view, 5.0).verdict is Verdict.ADMITTED


def test_the_default_is_registered() -> None:
    assert DEFAULT_ADMISSION in ADMISSION.names()
