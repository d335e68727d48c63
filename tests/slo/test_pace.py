"""How far ahead of their limits running requests are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.slo.pace import Pace, find_spare_s

DECODE_S = 0.05


def pace(begun_s: float, out_tokens: int, left_tokens: int = 1, tpot_s: float = 0.1) -> Pace:
    return Pace(begun_s, tpot_s, out_tokens, left_tokens)


def spare_of(*paces: Pace) -> float | None:
    return find_spare_s(paces, 10.25, DECODE_S)


def test_after_its_first_token_a_request_has_one_gap() -> None:
    assert spare_of(pace(10.25, 1)) == pytest.approx(0.1)


def test_early_tokens_earn_time() -> None:
    # Six tokens within a quarter of a second: the seventh is due 0.6 s after the first.
    assert spare_of(pace(10.0, 6)) == pytest.approx(0.35)


def test_half_of_what_is_still_to_come_may_be_spent_now_up_to_one_gap() -> None:
    # Each token after the next one regains 50 ms.
    assert spare_of(pace(10.25, 1, left_tokens=2)) == pytest.approx(0.1 + 0.025)
    assert spare_of(pace(10.25, 1, left_tokens=5)) == pytest.approx(0.1 + 0.1)
    assert spare_of(pace(10.25, 1, left_tokens=500)) == pytest.approx(0.1 + 0.1)
    # At 40 ms a token, nothing is regained that may be lent.
    assert spare_of(pace(10.25, 1, 500, tpot_s=0.04)) is None
    assert spare_of(pace(10.0, 50, 10, tpot_s=0.04)) == pytest.approx(1.75)


def test_the_tightest_counts() -> None:
    assert spare_of(pace(10.0, 6), pace(10.22, 1), pace(9.0, 30)) == pytest.approx(0.07)


def test_nobody_has_nothing_to_spare() -> None:
    assert spare_of() is None


def test_who_cannot_keep_the_limit_any_more_holds_nobody_up() -> None:
    # 5 s behind, and 50 ms a token to regain: 60 tokens are too few, 120 suffice.
    lost, late = pace(5.25, 1, left_tokens=60), pace(5.25, 1, left_tokens=120)
    assert lost.is_lost(10.25, DECODE_S)
    assert not late.is_lost(10.25, DECODE_S)
    assert spare_of(lost) is None
    assert spare_of(lost, pace(10.25, 1)) == pytest.approx(0.1)
    assert spare_of(late, pace(10.25, 1)) == pytest.approx(-4.9 + 0.1)


@given(
    gaps_s=st.lists(st.floats(0.001, 0.5), min_size=2, max_size=30),
    tpot_s=st.floats(0.06, 0.4),
)
def test_whoever_spends_no_more_than_is_spare_keeps_the_average_at_the_end(
    gaps_s: list[float], tpot_s: float
) -> None:
    now_s = 0.0
    for index, wanted_s in enumerate(gaps_s):
        progress = Pace(0.0, tpot_s, index + 1, len(gaps_s) - index)
        now_s += max(DECODE_S, min(wanted_s, progress.spare_s(now_s, DECODE_S)))
        # Never behind by more than one gap, and at the end not at all.
        assert now_s <= tpot_s * (index + 2) * (1 + 1e-9)
    assert now_s / len(gaps_s) <= tpot_s * (1 + 1e-9)
