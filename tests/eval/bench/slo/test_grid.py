"""Each side brackets its max rate where a few loads can do that, and no side gets needless ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.eval.bench.slo.grid import Grid, Round, Tried, plan_next, plan_round, take_turns
from bana.slo.errors import ConfigError

GRID = Grid((0.75, 1.0, 1.5, 2.0))


def climb(attain: Callable[[float], float], grid: Grid = GRID) -> list[float]:
    """The loads that a side is offered which attains so much at each."""
    tried: list[Tried] = []
    while (multiple := plan_next(tried, grid)) is not None:
        tried.append(Tried(multiple, attain(multiple)))
        assert len(tried) <= len(grid.multiples) + grid.more_below + grid.more_above
    return [one.multiple for one in tried]


def test_a_side_that_fell_far_is_offered_no_higher_load() -> None:
    assert climb(lambda load: 1.0 if load < 1 else 0.5) == [0.75, 1.0]


def test_a_side_that_fell_a_little_is_offered_the_rest_of_the_grid() -> None:
    assert climb(lambda load: 1.0 if load < 1 else 0.8) == [0.75, 1.0, 1.5, 2.0]


def test_a_side_that_holds_the_grid_goes_beyond_it_until_it_breaks() -> None:
    found = climb(lambda load: 1.0 if load < 2.5 else 0.5)
    assert found == pytest.approx([0.75, 1.0, 1.5, 2.0, 2.0 * 4 / 3])


def test_a_side_that_misses_at_the_lowest_load_goes_below_it() -> None:
    found = climb(lambda load: 1.0 if load < 0.6 else 0.5)
    assert found == pytest.approx([0.75, 0.75 * 0.75])


def test_an_end_that_may_not_be_passed_is_not_passed() -> None:
    shut = Grid(GRID.multiples, more_below=0, more_above=1)
    assert climb(lambda load: 0.8, shut) == [0.75, 1.0, 1.5, 2.0]
    assert climb(lambda load: 1.0, shut) == pytest.approx([0.75, 1.0, 1.5, 2.0, 8 / 3])


@given(st.floats(0.01, 10.0), st.floats(0.0, 0.89))
def test_a_falling_curve_is_bracketed_or_the_bound_is_reached(edge: float, after: float) -> None:
    loads = climb(lambda load: 1.0 if load < edge else after)
    is_bracketed = min(loads) < edge <= max(loads)
    below, above = (sum(load < 0.75 for load in loads), sum(load > 2.0 for load in loads))
    assert is_bracketed or below == GRID.more_below or above == GRID.more_above


def test_a_round_is_the_lowest_load_that_is_wanted_with_all_who_want_it() -> None:
    held, fallen = [Tried(0.75, 1.0)], [Tried(0.75, 0.5)]
    assert plan_round({"a": [], "b": []}, GRID) == Round(0.75, ("a", "b"))
    assert plan_round({"a": held, "b": held}, GRID) == Round(1.0, ("a", "b"))
    below = plan_round({"a": held, "b": fallen}, GRID)
    assert below is not None
    assert (below.sides, below.multiple < 0.75) == (("b",), True)
    done = [Tried(0.75, 1.0), Tried(1.0, 0.5)]
    assert plan_round({"a": done, "b": done}, GRID) is None


def test_sides_take_turns() -> None:
    assert take_turns("abc", 0) == ["a", "b", "c"]
    assert take_turns("abc", 1) == ["c", "b", "a"]


@pytest.mark.parametrize("multiples", [(1.0,), (1.0, 0.5), (1.0, 1.0), (0.0, 1.0)])
def test_a_grid_rises(multiples: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="two or more, rising"):
        Grid(multiples)
