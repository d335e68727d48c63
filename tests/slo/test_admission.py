"""The built-in admission policies refuse exactly what cannot be answered in time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.slo.admission import ADMISSION, AdmissionDecision, ArrivalView, Verdict
from bana.slo.budget import Budget
from bana.slo.errors import ConfigError

# Binary fractions, so that sums are exact and a boundary is met exactly.
EIGHTHS = st.integers(0, 800).map(lambda n: n / 8)

PATIENT = ADMISSION.create("reject_infeasible", {"min_retry_s": 0.125, "max_retry_s": 3600.0})


def _decide(view: ArrivalView, now_s: float, **options: object) -> AdmissionDecision:
    return ADMISSION.create("reject_infeasible", options).decide_admission(view, now_s)


def _view(
    service_s: float, ahead_s: float, *, ttft_s: float = 8.0, inflation: float = 1.0
) -> ArrivalView:
    return ArrivalView(Budget("standard", 100.0, ttft_s, 0.1), service_s, ahead_s, inflation)


def test_accept_takes_the_hopeless_too() -> None:
    decision = ADMISSION.create("accept").decide_admission(_view(9e9, 9e9, inflation=50.0), 1e6)
    assert decision == AdmissionDecision(Verdict.ADMITTED, "always")


@pytest.mark.parametrize(
    ("service_s", "ahead_s", "now_s", "reason"),
    [
        (3.0, 5.0, 100.0, "feasible"),
        (3.0, 5.125, 100.0, "infeasible"),
        # What was waited at the front door is gone.
        (3.0, 4.0, 101.0, "feasible"),
        (3.0, 4.0, 101.125, "infeasible"),
        # Not even an empty engine could.
        (8.0, 0.0, 100.0, "feasible"),
        (8.0, 0.125, 100.0, "infeasible"),
        (8.125, 0.0, 100.0, "infeasible_alone"),
        # Past its deadline, but in time were it sent anew.
        (1.0, 0.0, 200.0, "infeasible"),
    ],
)
def test_it_refuses_what_would_be_late(
    service_s: float, ahead_s: float, now_s: float, reason: str
) -> None:
    decision = _decide(_view(service_s, ahead_s), now_s)
    assert decision.reason == reason
    refused = decision.verdict is Verdict.REJECTED_INFEASIBLE
    assert refused == (reason != "feasible")


@pytest.mark.parametrize(("guard", "inflation"), [(2.0, 1.0), (1.0, 2.0)])
def test_guard_and_inflation_stretch_both_wait_and_service(guard: float, inflation: float) -> None:
    assert _decide(_view(1.0, 3.0, inflation=inflation), 100.0, guard=guard).reason == "feasible"
    late = _decide(_view(1.0, 3.125, inflation=inflation), 100.0, guard=guard)
    assert late.reason == "infeasible"


def test_it_says_when_enough_of_the_backlog_will_be_gone() -> None:
    # 20 s of work, inflated to 40; the limit covers 8 of them, so that 32 have to pass.
    assert _decide(_view(2.0, 18.0, inflation=2.0), 100.0).retry_after_s == 32.0
    # With a guard of 2 it covers 4.
    assert _decide(_view(1.0, 19.0, inflation=2.0), 100.0, guard=2.0).retry_after_s == 36.0


@pytest.mark.parametrize(
    ("view", "retry_after_s"),
    [
        (_view(4.0, 4.0), 0.25),
        (_view(4.0, 1000.0), 90.0),
        (_view(9.0, 0.0), 90.0),
    ],
)
def test_the_time_to_come_again_is_bounded(view: ArrivalView, retry_after_s: float) -> None:
    decision = _decide(view, 100.125, min_retry_s=0.25, max_retry_s=90.0)
    assert decision.verdict is Verdict.REJECTED_INFEASIBLE
    assert decision.retry_after_s == retry_after_s


@settings(deadline=None)
@given(EIGHTHS, EIGHTHS, EIGHTHS, st.sampled_from([1.0, 2.0, 4.0]))
def test_who_comes_again_when_told_finds_room(
    service_s: float, spare_s: float, late_s: float, inflation: float
) -> None:
    ttft_s, ahead_s = (service_s + spare_s + 0.125) * inflation, spare_s + 0.25 + late_s
    view = _view(service_s, ahead_s, ttft_s=ttft_s, inflation=inflation)
    decision = PATIENT.decide_admission(view, 100.0)
    assert decision.reason == "infeasible"
    assert decision.retry_after_s is not None
    left_s = max(0.0, ahead_s - decision.retry_after_s / inflation)
    again = _view(service_s, left_s, ttft_s=ttft_s, inflation=inflation)
    assert PATIENT.decide_admission(again, 100.0).verdict is Verdict.ADMITTED


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("accept", {"guard": 1.0}),
        ("reject_infeasible", {"guard": 0.0}),
        ("reject_infeasible", {"guard": 11.0}),
        ("reject_infeasible", {"guard": float("nan")}),
        ("reject_infeasible", {"min_retry_s": 0.0}),
        ("reject_infeasible", {"max_retry_s": 1e9}),
        ("reject_infeasible", {"min_retry_s": 61.0}),
    ],
)
def test_options_are_checked(policy: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ADMISSION.create(policy, options)
