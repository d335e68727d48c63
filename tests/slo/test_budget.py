"""Budgets are read whole or refused, and judged as the load generator judges."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.slo.budget import Budget, BudgetOutcome, Limit, judge_budget, read_budget
from bana.slo.errors import ConfigError
from bana.slo.limits import Slo, SloError

BOOT = "0b9c7a52-5b50-4d0a-9d39-3f7f3c1f9d10"
DEFAULT = Slo("standard", 10.0, 0.25)
NOW_S = 5000.0
SHARED = {"bana_slo_class": "interactive", "bana_ttft_s": 2.0, "bana_tpot_s": 0.1}
LOCAL = {**SHARED, "bana_arrival_s": 4999.5, "bana_deadline_s": 5001.5, "bana_boot_id": BOOT}
REMOTE = {**SHARED, "bana_remaining_s": 1.5}


def _read(params: dict[str, object]) -> Budget:
    return read_budget(params, NOW_S, BOOT, DEFAULT)


@pytest.mark.parametrize("params", [{}, {"other": 1, "banana_ttft_s": "x"}])
def test_a_request_that_carries_nothing_has_the_default_from_now_on(
    params: dict[str, object],
) -> None:
    assert _read(params) == Budget("standard", NOW_S, 10.0, 0.25)


@pytest.mark.parametrize("params", [LOCAL, REMOTE, {**LOCAL, "other": [1]}])
def test_a_promise_keeps_its_arrival(params: dict[str, object]) -> None:
    assert _read(params) == Budget("interactive", 4999.5, 2.0, 0.1)


@pytest.mark.parametrize("carrier", [LOCAL, REMOTE], ids=["local", "remote"])
def test_the_whole_answer_is_limited_where_the_promise_says_so(carrier: dict[str, object]) -> None:
    assert _read({**carrier, "bana_e2e_s": 9.0}).e2e_s == 9.0
    assert _read({**carrier, "bana_e2e_s": None}).e2e_s is None
    with pytest.raises(SloError, match="bana_e2e_s"):
        _read({**carrier, "bana_e2e_s": -1.0})
    default = Slo("standard", 10.0, 0.25, e2e_s=60.0)
    assert read_budget({}, NOW_S, BOOT, default).e2e_s == 60.0


def test_a_whole_number_is_a_number() -> None:
    assert _read({**REMOTE, "bana_ttft_s": 2, "bana_remaining_s": 1}).arrival_s == 4999.0


def test_what_is_late_already_stays_late() -> None:
    late = _read({**REMOTE, "bana_remaining_s": -30.0})
    assert (late.deadline_s, late.slack_s(NOW_S, 1.0)) == (4970.0, -31.0)


def test_a_clock_read_before_the_stamp_is_forgiven() -> None:
    stamped = {**LOCAL, "bana_arrival_s": 5000.5, "bana_deadline_s": 5002.5}
    assert _read(stamped).deadline_s == 5002.5


NO_LIMIT = [0, -1.0, math.nan, math.inf, 86_401, 10**400, 10**5000, True, "2", None, [2.0], {}]
NO_CLOCK = [-1.0, math.nan, math.inf, -math.inf, 1e11, 10**400, False, "4999.5", None]


@pytest.mark.parametrize("value", NO_LIMIT, ids=lambda v: f"{type(v).__name__}")
@pytest.mark.parametrize("word", ["bana_ttft_s", "bana_tpot_s"])
@pytest.mark.parametrize("carrier", [LOCAL, REMOTE], ids=["local", "remote"])
def test_a_limit_that_is_none_is_refused(
    carrier: dict[str, object], word: str, value: object
) -> None:
    with pytest.raises(SloError, match=word) as raised:
        _read({**carrier, word: value})
    assert raised.value.code == "slo_invalid"
    assert raised.value.param.startswith("custom_params")


@pytest.mark.parametrize("value", NO_CLOCK, ids=lambda v: f"{type(v).__name__}")
@pytest.mark.parametrize("word", ["bana_arrival_s", "bana_deadline_s"])
def test_a_time_that_is_none_is_refused(word: str, value: object) -> None:
    with pytest.raises(SloError, match=word):
        _read({**LOCAL, word: value})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1e6, 1e6, True, "1", None])
def test_a_remainder_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(SloError, match="bana_remaining_s"):
        _read({**REMOTE, "bana_remaining_s": value})


@pytest.mark.parametrize("value", ["", "a b", "x" * 65, "a\n", 3, None])
def test_a_class_that_is_no_name_is_refused(value: object) -> None:
    with pytest.raises(SloError, match="bana_slo_class"):
        _read({**LOCAL, "bana_slo_class": value})


@pytest.mark.parametrize(
    ("params", "part"),
    [
        # Of another boot, whose clock says nothing here.
        ({**LOCAL, "bana_boot_id": "another"}, "another boot"),
        ({**LOCAL, "bana_boot_id": ""}, "another boot"),
        ({**LOCAL, "bana_boot_id": None}, "bana_boot_id"),
        # From the future, or from long ago.
        ({**LOCAL, "bana_arrival_s": 5001.5, "bana_deadline_s": 5003.5}, "not at most 1 s after"),
        ({**REMOTE, "bana_remaining_s": 3.5}, "not at most 1 s after"),
        ({**REMOTE, "bana_remaining_s": -86_399.0}, "86400 s before"),
        # Contradicting itself.
        ({**LOCAL, "bana_deadline_s": 5001.6}, "is not arrival"),
        ({**LOCAL, "bana_remaining_s": 1.5}, "unknown word in custom_params"),
        # Unknown, or meant for a front door.
        ({"bana_slo_ttft_ms": 500}, "unknown word in custom_params: 'bana_slo_ttft_ms'"),
        ({**LOCAL, "bana_tttft_s": 1.0}, "did you mean 'bana_ttft_s'"),
        ({**LOCAL, "bana_" + "x" * 10_000: 1.0}, "unknown word"),
    ],
)
def test_what_cannot_be_meant_is_refused(params: dict[str, object], part: str) -> None:
    with pytest.raises(SloError, match=part) as raised:
        _read(params)
    assert isinstance(raised.value, ConfigError)
    assert len(str(raised.value)) < 500


def test_long_ago_is_refused_here_too() -> None:
    with pytest.raises(SloError, match="86400 s before"):
        read_budget(LOCAL, 4999.5 + 86_401.0, BOOT, DEFAULT)


@pytest.mark.parametrize(
    ("whole", "word"), [(LOCAL, w) for w in LOCAL] + [(REMOTE, w) for w in SHARED]
)
def test_half_a_promise_is_refused(whole: dict[str, object], word: str) -> None:
    with pytest.raises(SloError, match=word):
        _read({key: value for key, value in whole.items() if key != word})


JSON = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(sorted({**LOCAL, **REMOTE})), JSON), st.booleans())
def test_whatever_comes_is_refused_or_of_sane_size(
    changed: dict[str, object], is_local: bool
) -> None:
    try:
        budget = _read({**(LOCAL if is_local else REMOTE), **changed})
    except SloError:
        return
    assert 0 < budget.ttft_s <= 86_400
    assert 0 < budget.tpot_s <= 86_400
    assert NOW_S - 86_400 <= budget.arrival_s <= NOW_S + 1
    assert 1 <= len(budget.slo_class) <= 64


PROMISED = Budget("standard", 100.0, 2.0, 0.5)
IN_ALL = Budget("standard", 100.0, 2.0, 0.5, e2e_s=4.0)


@pytest.mark.parametrize(
    ("budget", "first_s", "last_s", "tokens", "outcome"),
    [
        # Equal to its limits meets them.
        (PROMISED, 102.0, 104.0, 5, BudgetOutcome(2.0, 0.5, 0.0, (Limit.TTFT, Limit.TPOT), ())),
        (PROMISED, 103.0, 105.5, 5, BudgetOutcome(3.0, 0.625, -1.0, (), (Limit.TTFT, Limit.TPOT))),
        (PROMISED, 101.0, 103.5, 5, BudgetOutcome(1.0, 0.625, 1.0, (Limit.TTFT,), (Limit.TPOT,))),
        # One token has no TPOT, and what was not promised is neither met nor missed.
        (PROMISED, 101.5, 101.5, 1, BudgetOutcome(1.5, None, 0.5, (Limit.TTFT,), ())),
        (IN_ALL, 101.0, 104.0, 1, BudgetOutcome(1.0, None, 1.0, (Limit.TTFT, Limit.E2E), ())),
        (IN_ALL, 101.0, 104.5, 1, BudgetOutcome(1.0, None, 1.0, (Limit.TTFT,), (Limit.E2E,))),
    ],
)
def test_an_answer_is_judged_by_its_budget(
    budget: Budget, first_s: float, last_s: float, tokens: int, outcome: BudgetOutcome
) -> None:
    judged = judge_budget(budget, first_s, last_s, tokens)
    assert judged == outcome
    assert judged.is_met == (not outcome.missed)


@settings(deadline=None)
@given(st.floats(0, 1e7), st.floats(1e-3, 100), st.floats(0, 200))
def test_slack_is_negative_exactly_when_ttft_is_missed(
    arrival_s: float, ttft_s: float, waited_s: float
) -> None:
    budget, first_s = Budget("standard", arrival_s, ttft_s, 1.0), arrival_s + waited_s
    judged = judge_budget(budget, first_s, first_s, 1)
    assert (judged.slack_s < 0) == (Limit.TTFT in judged.missed)
