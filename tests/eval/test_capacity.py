from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.eval.capacity import (
    LIVE_P99_FACTOR,
    RateBounds,
    find_max_rate,
    plan_next_rate,
    take_point,
)
from bana.eval.goodput import summarise
from bana.eval.requests import Ending, Limits, LoadRun, Observed, Phase, Validity
from bana.eval.runs import RunAbout
from bana.eval.summary import LoadPoint
from bana.slo.errors import ConfigError


def grid(*attainments: float, p99s_s: tuple[float | None, ...] = ()) -> list[LoadPoint]:
    """Points at 1, 2, 3, … requests/s."""
    tails = p99s_s or (None,) * len(attainments)
    pairs = zip(attainments, tails, strict=True)
    return [LoadPoint(float(i), share, p99_s) for i, (share, p99_s) in enumerate(pairs, 1)]


def test_the_max_rate_is_interpolated_between_the_points_around_it() -> None:
    found = find_max_rate(grid(1.0, 0.95, 0.85), 0.9)

    assert found.rps == pytest.approx(2.5)
    assert found.target == 0.9
    assert found.reason == "attains 95 % at 2/s and 85 % at 3/s"


def test_a_point_on_the_target_holds_it() -> None:
    assert find_max_rate(grid(1.0, 0.9, 0.0), 0.9).rps == 2.0


@pytest.mark.parametrize(
    ("points", "said"),
    [
        (grid(1.0, 0.93), "93 % at 2/s, the highest rate offered: offer more"),
        (grid(0.85, 0.2), "85 % at 1/s, the lowest rate offered: offer less"),
        ([], "no valid point"),
        ([LoadPoint(3.0, 1.0, None, is_valid=False)], "left out as not valid: 3/s"),
    ],
)
def test_without_both_sides_there_is_no_answer(points: list[LoadPoint], said: str) -> None:
    found = find_max_rate(points, 0.9)

    assert found.rps is None
    assert said in found.reason


def test_the_first_crossing_counts_and_noise_above_it_is_named() -> None:
    found = find_max_rate(grid(1.0, 0.8, 0.99, 0.5), 0.9)

    assert found.rps == pytest.approx(1.5)
    assert "held again at 3/s" in found.reason


def test_a_rate_above_one_that_missed_is_not_held() -> None:
    found = find_max_rate(grid(0.89, 0.95, 0.5), 0.9)

    assert found.rps is None
    assert "held again at 2/s" in found.reason


def test_points_that_are_not_valid_are_left_out_and_named() -> None:
    points = [*grid(1.0, 0.95, 0.85), LoadPoint(2.5, 0.0, None, is_valid=False)]
    found = find_max_rate(points, 0.9)

    assert found.rps == pytest.approx(2.5)
    assert "left out as not valid: 2.5/s" in found.reason
    assert len(found.points) == 4


def test_several_runs_of_one_rate_are_one_point() -> None:
    points = [*grid(1.0, 0.95, 0.85), LoadPoint(2.0, 0.85, None)]

    assert find_max_rate(points, 0.9).rps == pytest.approx(2.0)


def test_a_tail_past_its_limit_ends_the_rate_too() -> None:
    points = grid(1.0, 0.98, 0.96, 0.2, p99s_s=(1.0, 2.0, 6.0, 50.0))

    assert find_max_rate(points, 0.9, p99_limit_s=100.0).rps == find_max_rate(points, 0.9).rps
    bounded = find_max_rate(points, 0.9, p99_limit_s=3.0)
    assert bounded.rps == pytest.approx(2.25)
    assert "p99 TTFT 6 s (limit 3 s)" in bounded.reason


def test_the_tighter_of_both_bounds_counts() -> None:
    points = grid(1.0, 0.7, p99s_s=(1.0, 2.0))

    assert find_max_rate(points, 0.9, p99_limit_s=1.25).rps == pytest.approx(1.25)
    assert find_max_rate(points, 0.9, p99_limit_s=1.75).rps == pytest.approx(4 / 3)


def test_a_rate_at_which_no_token_came_bounds_the_tail_below() -> None:
    points = grid(1.0, 0.95, p99s_s=(1.0, None))

    assert find_max_rate(points, 0.9, p99_limit_s=3.0).rps == 1.0


@pytest.mark.parametrize("target", [0.0, -1.0, 1.1, math.nan])
def test_a_target_that_is_no_share_is_refused(target: float) -> None:
    with pytest.raises(ConfigError, match="target"):
        find_max_rate(grid(1.0, 0.5), target)


points_lists = st.lists(
    st.builds(
        LoadPoint,
        st.sampled_from([1.0, 2.0, 4.0, 8.0, 16.0]),
        st.floats(0, 1),
        st.none() | st.floats(0.01, 100),
        st.booleans(),
    ),
    max_size=8,
)


@given(points_lists, st.floats(0.01, 1), st.none() | st.floats(0.01, 50))
def test_an_answer_lies_between_a_held_and_an_exceeded_rate(
    points: list[LoadPoint], target: float, p99_limit_s: float | None
) -> None:
    found = find_max_rate(points, target, p99_limit_s)
    valid = [p for p in points if p.is_valid]

    assert sorted(p.offered_rps for p in points) == [p.offered_rps for p in found.points]
    if found.rps is None:
        return
    assert min(p.offered_rps for p in valid) <= found.rps <= max(p.offered_rps for p in valid)
    assert any(p.offered_rps <= found.rps and p.attainment >= target for p in valid)


@given(points_lists, st.floats(0.01, 1), st.floats(0.01, 1))
def test_a_higher_target_never_has_a_higher_rate(
    points: list[LoadPoint], one: float, other: float
) -> None:
    low, high = (find_max_rate(points, target).rps for target in sorted((one, other)))

    if low is not None and high is not None:
        assert high <= low + 1e-9


@given(points_lists, st.randoms(use_true_random=False))
def test_the_order_of_points_does_not_matter(
    points: list[LoadPoint], shuffler: random.Random
) -> None:
    shuffled = shuffler.sample(points, len(points))

    assert find_max_rate(shuffled, 0.9).rps == find_max_rate(points, 0.9).rps


BOUNDS = RateBounds(start_rps=4.0, min_rps=0.5, max_rps=64.0, tolerance=1.1, max_points=20)


def search(capacity_rps: float, bounds: RateBounds = BOUNDS) -> list[LoadPoint]:
    """All points of a search whose server attains all up to its capacity, and little beyond."""
    points: list[LoadPoint] = []
    while (rate := plan_next_rate(points, 0.9, bounds)) is not None:
        points.append(LoadPoint(rate, 1.0 if rate <= capacity_rps else 0.2, None))
    return points


@pytest.mark.parametrize("capacity_rps", [0.7, 4.0, 5.3, 40.0])
def test_a_search_brackets_then_narrows(capacity_rps: float) -> None:
    points = search(capacity_rps)
    held = max(p.offered_rps for p in points if p.attainment > 0.9)
    exceeded = min(p.offered_rps for p in points if p.attainment < 0.9)

    assert held <= capacity_rps < exceeded <= held * BOUNDS.tolerance
    assert len(points) <= 10
    assert find_max_rate(points, 0.9).rps is not None


def test_a_search_begins_at_its_start_and_doubles() -> None:
    assert [p.offered_rps for p in search(1e9)] == [4.0, 8.0, 16.0, 32.0, 64.0]


def test_a_search_that_holds_nothing_ends_at_the_bottom() -> None:
    assert [p.offered_rps for p in search(0.0)] == [4.0, 2.0, 1.0, 0.5]


def test_a_search_ends_after_its_points() -> None:
    few = RateBounds(start_rps=4.0, min_rps=0.5, max_rps=64.0, max_points=3)

    assert len(search(1e9, few)) == 3


def test_a_search_narrows_on_the_tail_too() -> None:
    points = grid(1.0, 1.0, p99s_s=(1.0, 9.0))
    bounded = RateBounds(1.0, 0.5, 64.0, p99_limit_s=3.0)

    assert plan_next_rate(points, 0.9, bounded) == pytest.approx(math.sqrt(2))
    assert plan_next_rate(points, 0.9, BOUNDS) == 4.0


def test_a_rate_whose_run_failed_is_offered_again_and_then_a_ceiling() -> None:
    held = LoadPoint(4.0, 1.0, None)
    failed = LoadPoint(8.0, 0.1, None, is_valid=False)

    assert plan_next_rate([held, failed], 0.9, BOUNDS) == 8.0
    assert plan_next_rate([held, failed, failed], 0.9, BOUNDS) == pytest.approx(math.sqrt(32))
    assert plan_next_rate([failed, failed], 0.9, BOUNDS) == 4.0


noisy = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=20, max_size=20)


@given(noisy)
def test_whatever_comes_back_a_search_stays_in_its_range_and_ends(
    answers: list[tuple[float, bool]],
) -> None:
    points: list[LoadPoint] = []
    while (rate := plan_next_rate(points, 0.9, BOUNDS)) is not None:
        assert BOUNDS.min_rps <= rate <= BOUNDS.max_rps
        attainment, is_valid = answers[len(points)]
        points.append(LoadPoint(rate, attainment, None, is_valid))

    assert len(points) <= BOUNDS.max_points


@pytest.mark.parametrize(
    "changes",
    [
        {"min_rps": 0.0},
        {"min_rps": 5.0},
        {"max_rps": 3.0},
        {"max_rps": math.inf},
        {"tolerance": 1.0},
        {"max_points": 0},
    ],
)
def test_bounds_that_hold_no_search_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        RateBounds(**{"start_rps": 4.0, "min_rps": 1.0, "max_rps": 8.0, **changes})


def test_a_run_becomes_a_point() -> None:
    observed = Observed(
        0, 0.0, Ending.FINISHED, "c", Limits(1.0), Phase.WINDOW, 1, 1, 0.0, 0.5, 0.5, 0.5, 1
    )
    run = LoadRun((observed,), (), (), 4.0, 5.0, Validity(True))
    cut = LoadRun((observed,), (), (), 4.0, 5.0, Validity(True), is_interrupted=True)
    about = RunAbout("t", 1, "f", {})

    assert take_point(summarise(run, about)) == LoadPoint(0.25, 1.0, 0.5)
    assert not take_point(summarise(cut, about)).is_valid
    assert LIVE_P99_FACTOR == 40
