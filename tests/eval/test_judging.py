from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.eval.judging import Judged, judge, list_limits
from bana.eval.requests import Ending, Limits, Observed, Phase
from bana.eval.summary import Dimension

UNANSWERED = [Ending.REJECTED, Ending.FAILED, Ending.CUT, Ending.UNFINISHED]
LIMITS = Limits(ttft_s=1.0, tpot_s=0.1, e2e_s=5.0)


def request(**changes: Any) -> Observed:
    """Due at 10 s, first of five tokens after 0.5 s, over after 0.8 s."""
    whole = Observed(
        index=0,
        due_s=10.0,
        ending=Ending.FINISHED,
        slo_class="default",
        limits=LIMITS,
        phase=Phase.WINDOW,
        prompt_tokens=7,
        asked_tokens=5,
        sent_s=10.0,
        first_s=10.5,
        last_s=10.8,
        end_s=10.8,
        output_tokens=5,
    )
    return msgspec.structs.replace(whole, **changes)


def silent(**changes: Any) -> Observed:
    """A request that never had a token."""
    return request(**{"first_s": None, "last_s": None, "output_tokens": 0, **changes})


def naive(o: Observed) -> set[str]:
    """Another reading of the definition: limit by limit, deadline by deadline."""
    missed = set()
    over_s = o.end_s if o.end_s is not None else o.last_s
    if o.limits.ttft_s is not None:
        if o.first_s is not None:
            if o.first_s - o.due_s > o.limits.ttft_s:
                missed.add("ttft")
        elif o.asked_tokens > 0 and over_s is not None and over_s - o.due_s > o.limits.ttft_s:
            missed.add("ttft")
    has_span = o.first_s is not None and o.last_s is not None and o.output_tokens >= 2
    if o.limits.tpot_s is not None and has_span:
        span_s = o.last_s - o.first_s  # type: ignore[operator]
        if span_s / (o.output_tokens - 1) > o.limits.tpot_s:
            missed.add("tpot")
    if o.limits.e2e_s is not None and over_s is not None and over_s - o.due_s > o.limits.e2e_s:
        missed.add("e2e")
    if o.ending in UNANSWERED:
        missed.add("no_answer")
    if o.ending is Ending.FINISHED and o.output_tokens == 0 and o.asked_tokens > 0:
        missed.add("no_answer")
    return missed


limit = st.none() | st.floats(0, 20)
some_limits = st.builds(Limits, ttft_s=limit, tpot_s=limit, e2e_s=limit)


@st.composite
def requests(draw: st.DrawFn) -> Observed:
    tokens = draw(st.integers(0, 5))
    waits = sorted(draw(st.lists(st.floats(0, 30), min_size=3, max_size=3)))
    due_s = draw(st.floats(0, 1e6))
    first_s, last_s, end_s = (due_s + wait for wait in waits)
    return request(
        due_s=due_s,
        ending=draw(st.sampled_from(Ending)),
        limits=draw(some_limits),
        asked_tokens=draw(st.integers(0, 5)),
        first_s=first_s if tokens else None,
        last_s=last_s if tokens else None,
        end_s=draw(st.sampled_from([None, end_s])),
        output_tokens=tokens,
    )


@given(requests())
def test_judging_agrees_with_a_naive_reading(o: Observed) -> None:
    assert {dimension.value for dimension in judge(o)} == naive(o)


@given(requests(), some_limits)
def test_tighter_limits_never_forgive(o: Observed, other: Limits) -> None:
    def tighter(name: str) -> float | None:
        both = [x for x in (getattr(o.limits, name), getattr(other, name)) if x is not None]
        return min(both, default=None)

    tight = Limits(tighter("ttft_s"), tighter("tpot_s"), tighter("e2e_s"))

    assert judge(o) <= judge(msgspec.structs.replace(o, limits=tight))


def test_a_request_within_all_its_limits_is_met() -> None:
    assert judge(request()) == frozenset()
    assert Judged(request(), judge(request())).is_met


def test_a_latency_equal_to_its_limit_meets_it() -> None:
    limits = Limits(ttft_s=0.5, tpot_s=0.125, e2e_s=1.0)
    on_time = request(limits=limits, last_s=11.0, end_s=11.0)

    assert judge(on_time) == frozenset()


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({"first_s": 11.1, "last_s": 11.2, "end_s": 11.2}, {Dimension.TTFT}),
        ({"last_s": 11.0, "end_s": 11.0}, {Dimension.TPOT}),
        ({"end_s": 15.1}, {Dimension.E2E}),
        ({"first_s": 12.0, "last_s": 16.0, "end_s": 16.0}, set(Dimension) - {Dimension.NO_ANSWER}),
    ],
)
def test_each_limit_is_judged_for_itself(changes: dict[str, float], missed: set[Dimension]) -> None:
    assert judge(request(**changes)) == missed


def test_ttft_counts_from_the_schedule_not_from_the_send() -> None:
    held_back = request(sent_s=14.0, first_s=14.1, last_s=14.2, end_s=14.2)

    assert judge(held_back) == {Dimension.TTFT}


def test_a_limit_that_is_not_set_cannot_be_missed() -> None:
    assert judge(request(limits=Limits(), first_s=1e6, last_s=1e9, end_s=1e9)) == frozenset()


def test_one_token_has_no_tpot_to_miss() -> None:
    assert judge(request(output_tokens=1, limits=Limits(tpot_s=0.0))) == frozenset()


@pytest.mark.parametrize("ending", UNANSWERED)
def test_whatever_is_no_answer_is_a_miss_without_any_limit(ending: Ending) -> None:
    assert judge(request(ending=ending, limits=Limits())) == {Dimension.NO_ANSWER}


@pytest.mark.parametrize("ending", UNANSWERED)
def test_no_answer_also_misses_the_limits_that_ran_out_meanwhile(ending: Ending) -> None:
    quick, slow = silent(ending=ending, end_s=10.2), silent(ending=ending, end_s=30.0)

    assert judge(quick) == {Dimension.NO_ANSWER}
    assert judge(slow) == {Dimension.NO_ANSWER, Dimension.TTFT, Dimension.E2E}


def test_a_finished_answer_without_a_token_is_none_unless_none_was_asked() -> None:
    assert judge(silent()) == {Dimension.NO_ANSWER}
    assert judge(silent(asked_tokens=0, end_s=14.0)) == frozenset()


@pytest.mark.parametrize(
    ("left_s", "first_s", "missed"),
    [
        (10.4, None, set()),
        (12.0, 10.5, set()),
        (12.0, None, {Dimension.TTFT}),
        (12.0, 11.5, {Dimension.TTFT}),
    ],
)
def test_a_planned_departure_is_judged_as_far_as_it_waited(
    left_s: float, first_s: float | None, missed: set[Dimension]
) -> None:
    tokens = 0 if first_s is None else 1
    left = silent(
        ending=Ending.CANCELLED, end_s=left_s, first_s=first_s, last_s=first_s, output_tokens=tokens
    )

    assert judge(left) == missed


def test_a_request_names_the_limits_it_has() -> None:
    assert list_limits(request()) == {Dimension.TTFT, Dimension.TPOT, Dimension.E2E}
    assert list_limits(request(limits=Limits(tpot_s=0.0))) == {Dimension.TPOT}
    assert list_limits(request(limits=Limits())) == frozenset()
