from __future__ import annotations

import pytest

from bana.eval.bench.pairs import (
    Pair,
    PairPlan,
    figure_difference,
    figure_level,
    figure_range,
    figure_ratio,
    join_pair,
    plan_runs,
    split_pair,
)
from bana.slo.errors import ConfigError
from bana.slo.figures import Aim, Better

PLAN = PairPlan("speed", "ours", "theirs", 4)


def pairs_of(*values: tuple[float, float]) -> list[Pair]:
    return [Pair({"x": first}, {"x": second}) for first, second in values]


def test_the_order_alternates_and_both_sides_share_the_index() -> None:
    runs = list(plan_runs(PLAN))

    assert [first.side for first, _ in runs] == ["ours", "theirs", "ours", "theirs"]
    assert all({first.side, second.side} == {"ours", "theirs"} for first, second in runs)
    assert [(first.index, second.index) for first, second in runs] == [(i, i) for i in range(4)]


@pytest.mark.parametrize(("second", "pairs"), [("ours", 1), ("theirs", 0)])
def test_a_comparison_with_itself_or_without_pairs_is_refused(second: str, pairs: int) -> None:
    with pytest.raises(ConfigError):
        PairPlan("speed", "ours", second, pairs)


def test_a_pair_survives_being_written_flat() -> None:
    values = {"theirs": {"x": 2.0, "y.z": 3.0}, "ours": {"x": 1.0, "y.z": 4.0}}

    pair = split_pair(PLAN, join_pair(PLAN, dict(values)))

    assert pair == Pair(values["ours"], values["theirs"])


def test_ratio_is_first_over_second_pair_by_pair() -> None:
    figure = figure_ratio(pairs_of((2, 1), (9, 3), (40, 10)), "x", 0, Aim(1.5))

    assert figure.value == 3.0
    assert 2.0 <= figure.low <= figure.value <= figure.high <= 4.0
    assert (figure.aim, figure.met) == (">= 1.5", True)


def test_an_aim_is_judged_on_the_pessimistic_end() -> None:
    noisy = pairs_of((1.0, 1.0), (3.0, 1.0), (3.0, 1.0))

    assert figure_ratio(noisy, "x", 0, Aim(2.0)).met is False
    assert figure_difference(noisy, "x", 0, "ms", Aim(1.0, Better.LOWER)).met is False


def test_difference_is_first_minus_second() -> None:
    figure = figure_difference(pairs_of((5, 1), (6, 1), (7, 1)), "x", 0, "ms", None)

    assert (figure.value, figure.unit, figure.aim, figure.met) == (5.0, "ms", None, None)


def test_range_shows_the_worst_repetition_and_level_the_sure_part() -> None:
    values = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 9.0]

    assert (figure_range(values, "chunks").low, figure_range(values, "chunks").high) == (1.0, 9.0)
    assert figure_level(values, 0, "ms").value == 1.0
