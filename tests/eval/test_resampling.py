from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.eval.resampling import (
    SEGMENTS,
    WHOLE,
    divide,
    draw_weights,
    place_times,
    spread_draws,
    spread_known,
    spread_runs,
    total_segments,
)
from bana.eval.runs import Window
from bana.eval.summary import Spread

WINDOW = Window(start_s=100.0, length_s=40.0)


def test_each_draw_takes_as_many_segments_as_there_are() -> None:
    weights = draw_weights()

    assert weights.shape[1] == SEGMENTS == WHOLE.size
    assert set(weights.sum(axis=1)) == {float(SEGMENTS)}
    assert weights.mean() == pytest.approx(1.0)
    assert WHOLE.min() == WHOLE.max() == 1.0


def test_draws_depend_on_the_seed_alone() -> None:
    assert np.array_equal(draw_weights(3), draw_weights(3))
    assert not np.array_equal(draw_weights(3), draw_weights(4))


def test_segments_are_equal_parts_of_the_window() -> None:
    edges = [100.0, 103.999, 104.0, 139.999]

    assert place_times(edges, WINDOW).tolist() == [0, 0, 1, 9]
    assert place_times([99.0, 140.0, 1e9], WINDOW).tolist() == [0, 9, 9]
    assert place_times([], WINDOW).tolist() == []


@given(st.lists(st.tuples(st.floats(100, 140), st.integers(0, 1000))))
def test_segments_hold_everything_once(amounts: list[tuple[float, int]]) -> None:
    places = place_times([at_s for at_s, _ in amounts], WINDOW)
    totals = total_segments(places, [amount for _, amount in amounts])

    assert totals.shape == (SEGMENTS,)
    assert (WHOLE @ totals)[0] == sum(amount for _, amount in amounts)


def test_dividing_by_nothing_gives_no_number_and_no_warning() -> None:
    quotients = divide(np.array([1.0, 0.0, 3.0]), np.array([0.0, 0.0, 2.0]))

    assert np.isnan(quotients).tolist() == [True, True, False]
    assert quotients[2] == 1.5


@given(st.floats(-1e6, 1e6), st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_an_interval_holds_its_value(value: float, drawn: list[float]) -> None:
    spread = spread_draws(value, np.array(drawn))

    assert spread is not None
    assert spread.low <= spread.value == value <= spread.high


def test_an_interval_leaves_out_the_tails() -> None:
    spread = spread_known(500.0, np.arange(1001.0))

    # Thinner tails than 2.5 %, since there are only ten segments.
    assert (spread.low, spread.high) == (pytest.approx(8.6, abs=0.5), pytest.approx(991.4, abs=0.5))


def test_too_many_draws_without_a_value_leave_no_interval() -> None:
    few, many = np.ones(1000), np.ones(1000)
    few[:10], many[:11] = np.nan, np.nan

    assert spread_draws(1.0, few) == Spread(1.0, 1.0, 1.0)
    assert spread_draws(1.0, many) is None


def test_runs_of_several_seeds_give_their_median() -> None:
    spread = spread_runs([3.0, 1.0, 2.0])

    assert spread.value == 2.0
    assert 1.0 <= spread.low <= spread.high <= 3.0


def test_intervals_cover_the_truth_where_neighbours_are_alike() -> None:
    # An autoregressive queue: each request is late mostly because the one before it was.
    random = np.random.default_rng(7)
    window = Window(0.0, 1000.0)
    weights, places = draw_weights(), place_times(range(1000), window)
    offered, covered = weights @ total_segments(places, np.ones(1000)), 0
    for _ in range(200):
        level = np.zeros(1000)
        for i, shock in enumerate(random.normal(size=1000)):
            level[i] = 0.8 * level[i - 1] + shock
        late = (level > 0).astype(float)
        share = weights @ total_segments(places, late) / offered
        spread = spread_known(float(late.mean()), share)
        covered += spread.low <= 0.5 <= spread.high

    assert covered >= 0.9 * 200
