from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.eval.balance import measure_balance
from bana.eval.requests import ServerSample
from bana.eval.runs import Window
from bana.eval.summary import Balance

WINDOW = Window(0.0, 10.0)


def sample(at_s: float, running: tuple[float, ...], waiting: tuple[float, ...]) -> ServerSample:
    return ServerSample(
        at_s,
        {f"instance-{i}": count for i, count in enumerate(running)},
        {f"instance-{i}": count for i, count in enumerate(waiting)},
    )


def test_a_sample_stands_until_the_next_and_the_last_until_the_end() -> None:
    samples = [sample(2.0, (1, 1), (0, 0)), sample(8.0, (3, 1), (4, 0))]

    assert measure_balance(samples, WINDOW) == Balance(
        instances=2,
        mean_running=pytest.approx((2 * 6 + 4 * 2) / 8),
        mean_waiting=pytest.approx((0 * 6 + 4 * 2) / 8),
        largest_waiting=4.0,
        max_over_mean=pytest.approx((1 * 6 + 7 / 4 * 2) / 8),
    )


def test_samples_outside_the_window_do_not_count() -> None:
    inside = [sample(1.0, (2, 2), (0, 0))]
    outside = [sample(-1.0, (50, 0), (50, 0)), sample(10.0, (90, 0), (90, 0))]

    assert measure_balance([*outside, *inside], WINDOW) == measure_balance(inside, WINDOW)


def test_a_server_that_tells_nothing_has_no_balance() -> None:
    assert measure_balance([], WINDOW) is None
    assert measure_balance([ServerSample(1.0, {}, {})], WINDOW) is None


def test_an_idle_server_is_balanced() -> None:
    found = measure_balance([sample(1.0, (0, 0), (0, 0))], WINDOW)

    assert found == Balance(2, 0.0, 0.0, 0.0, 1.0)


def test_idle_moments_do_not_hide_an_imbalance() -> None:
    samples = [sample(0.0, (0, 0), (0, 0)), sample(9.0, (4, 0), (0, 0))]
    found = measure_balance(samples, WINDOW)

    assert found is not None
    assert found.max_over_mean == 2.0


def test_a_load_that_no_time_was_seen_with_still_counts() -> None:
    samples = [sample(5.0, (4, 0), (0, 0)), sample(5.0, (0, 0), (0, 0))]
    found = measure_balance(samples, WINDOW)

    assert found is not None
    assert (found.mean_running, found.max_over_mean) == (0.0, 2.0)


counts = st.lists(st.integers(0, 50), min_size=3, max_size=3).map(tuple)
told = st.lists(st.builds(sample, st.floats(0, 9.99), counts, counts), min_size=1, max_size=8)


@given(told)
def test_balance_stays_between_perfect_and_all_on_one(samples: list[ServerSample]) -> None:
    found = measure_balance(samples, WINDOW)

    assert found is not None
    assert 1 - 1e-9 <= found.max_over_mean <= 3 + 1e-9
    assert found.mean_waiting <= found.largest_waiting + 1e-9
