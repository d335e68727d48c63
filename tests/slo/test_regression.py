"""Nonnegative least squares against trying every subset, and the pull towards what is believed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.slo.regression import Equations, Floats, clip_ratios, refit, solve_nonnegative

SIZE = 4
GROUPS = (slice(0, 2), slice(2, 4))
SEEDS = st.integers(0, 2**32)


def _problem(seed: int) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(6, SIZE)) * 10.0 ** rng.integers(-2, 3, size=SIZE)
    return rows.T @ rows + 1e-6 * np.eye(SIZE), rng.normal(size=6) @ rows


def _cost(hessian: Floats, target: Floats, x: Floats) -> float:
    return float(x @ hessian @ x / 2 - target @ x)


def _best_of_all_subsets(hessian: Floats, target: Floats) -> float:
    best = 0.0
    for count in range(1, SIZE + 1):
        for subset in itertools.combinations(range(SIZE), count):
            chosen = list(subset)
            part = np.linalg.solve(hessian[np.ix_(chosen, chosen)], target[chosen])
            x = np.zeros(SIZE)
            x[chosen] = part
            best = min(best, _cost(hessian, target, x)) if part.min() >= 0 else best
    return best


@settings(deadline=None)
@given(seed=SEEDS)
def test_no_subset_does_better(seed: int) -> None:
    hessian, target = _problem(seed)
    x = solve_nonnegative(hessian, target)
    assert x.min() >= 0
    best = _best_of_all_subsets(hessian, target)
    assert _cost(hessian, target, x) == pytest.approx(best, rel=1e-6, abs=1e-9)


def test_a_solution_without_negative_parts_is_the_plain_one() -> None:
    hessian = np.array([[2.0, 0.5], [0.5, 1.0]])
    assert solve_nonnegative(hessian, hessian @ (3.0, 4.0)) == pytest.approx([3.0, 4.0])


def test_a_negative_part_is_zero_and_the_rest_makes_up_for_it() -> None:
    hessian = np.array([[1.0, 0.9], [0.9, 1.0]])
    assert solve_nonnegative(hessian, np.array([1.0, 0.5])) == pytest.approx([1.0, 0.0])


def test_equations_are_sums_in_which_the_old_fade() -> None:
    rows = np.arange(12.0).reshape(3, SIZE)
    ratios = np.array([1.0, 0.5, 2.0])
    equations = Equations(SIZE)
    equations.add(rows[:1], ratios[:1], keep=0.5)
    equations.add(rows[1:], ratios[1:], keep=0.5)
    fades = np.array([0.25, 0.5, 1.0])
    assert equations.hessian == pytest.approx((rows.T * fades) @ rows)
    assert equations.target == pytest.approx((ratios * fades) @ rows)
    assert equations.totals == pytest.approx(fades @ rows)
    assert equations.weight == pytest.approx(1.75)


def test_the_error_is_the_root_mean_square_of_what_is_left() -> None:
    equations = Equations(SIZE)
    assert equations.estimate_error(np.ones(SIZE)) == 0.0
    equations.add(np.eye(SIZE), np.array([1.0, 1.0, 1.2, 0.8]))
    assert equations.estimate_error(np.ones(SIZE)) == pytest.approx(np.sqrt(0.08 / 4))


def test_a_limited_copy_says_the_same_with_less_weight() -> None:
    equations = Equations(SIZE)
    equations.add(np.ones((10, SIZE)), np.ones(10))
    limited = equations.limit(4.0)
    assert limited.weight == pytest.approx(4.0)
    assert limited.hessian == pytest.approx(0.4 * equations.hessian)
    assert equations.weight == 10.0
    assert equations.limit(20.0).weight == 10.0
    assert Equations(SIZE).limit(4.0).weight == 0.0


def test_joined_equations_are_both() -> None:
    parts = [Equations(SIZE), Equations(SIZE)]
    for part in parts:
        part.add(np.ones((2, SIZE)), np.ones(2))
    assert Equations.join(parts, SIZE).weight == 4.0
    assert parts[0].weight == 2.0


def test_without_equations_nothing_moves() -> None:
    believed = np.array([1.0, 1e-6, 0.0, 3.0])
    assert refit(believed, Equations(SIZE), GROUPS, 0.1) == pytest.approx(believed)


def test_what_equations_do_not_speak_of_stays() -> None:
    equations = Equations(SIZE)
    equations.add(np.tile([1.0, 0.0, 0.0, 0.0], (100, 1)), np.full(100, 2.0))
    moved = refit(np.ones(SIZE), equations, (slice(0, 1),), 0.1)
    assert moved == pytest.approx([2.0, 1.0, 1.0, 1.0], rel=1e-2)


def test_a_group_that_is_seen_only_together_changes_by_one_factor() -> None:
    equations = Equations(SIZE)
    believed = np.array([0.25, 0.75, 0.5, 0.5])
    equations.add(np.tile([1.0, 1.0, 0.0, 0.0], (100, 1)), np.full(100, 3.0))
    moved = refit(believed, equations, GROUPS, 0.1)
    assert moved[:2].sum() == pytest.approx(3.0, rel=1e-2)
    assert moved[:2] / believed[:2] == pytest.approx([3.0, 3.0], rel=0.1)
    assert moved[2:] == pytest.approx(believed[2:])


def test_what_was_believed_to_be_nothing_grows_only_on_evidence() -> None:
    believed = np.array([1.0, 0.0, 0.0, 0.0])
    row = np.array([[1.0, 1e6, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    once, often = Equations(SIZE), Equations(SIZE)
    once.add(row[:1], np.array([1.2]))
    often.add(np.tile(row, (200, 1)), np.tile([1.2, 1.0], 200))
    first, later = (refit(believed, e, GROUPS, 0.1)[1] * 1e6 for e in (once, often))
    assert first < 0.02
    assert later == pytest.approx(0.2, rel=0.1)


def test_inertia_is_what_observations_have_to_overcome() -> None:
    equations = Equations(SIZE)
    equations.add(np.tile([1.0, 0.0, 0.0, 0.0], (4, 1)), np.full(4, 2.0))
    light, heavy = (refit(np.ones(SIZE), equations, (), inertia) for inertia in (0.01, 100.0))
    assert light[0] > 1.9
    assert heavy[0] < 1.2


def test_a_measurement_counts_as_far_as_the_guard() -> None:
    clipped = clip_ratios(np.array([0.0, 0.9, 1.2, 1e9]), 0.5)
    assert clipped == pytest.approx([2 / 3, 0.9, 1.2, 1.5])
