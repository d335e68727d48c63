from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.slo.errors import ConfigError
from bana.slo.stats import bootstrap_median, bootstrap_paired

RATIOS = st.lists(st.floats(min_value=0.01, max_value=100), min_size=1, max_size=40)


@given(ratios=RATIOS, seed=st.integers(min_value=0, max_value=2**31))
def test_interval_encloses_the_median_and_stays_in_the_data(ratios: list[float], seed: int) -> None:
    interval = bootstrap_median(ratios, seed)

    assert interval.value == pytest.approx(statistics.median(ratios))
    slack = 1e-9 * max(ratios)
    assert min(ratios) - slack <= interval.low <= interval.high <= max(ratios) + slack


def test_same_seed_same_interval_and_other_seed_other_draws() -> None:
    ratios = list(np.random.default_rng(7).normal(1.0, 0.2, 30))

    assert bootstrap_median(ratios, 1) == bootstrap_median(ratios, 1)
    spreads = {bootstrap_median(ratios, seed).low for seed in range(8)}
    assert len(spreads) > 1


def test_one_sample_is_its_own_interval() -> None:
    interval = bootstrap_median([1.5], 0)

    assert (interval.value, interval.low, interval.high) == (1.5, 1.5, 1.5)


def test_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    source = np.random.default_rng(3)
    hits = 0
    for trial in range(200):
        interval = bootstrap_median(list(source.normal(2.0, 0.5, 25)), trial)
        hits += interval.low <= 2.0 <= interval.high

    assert 170 <= hits < 200


def test_more_repetitions_narrow_the_interval() -> None:
    source = np.random.default_rng(5)
    few = bootstrap_median(list(source.normal(1.0, 0.1, 8)), 0)
    many = bootstrap_median(list(source.normal(1.0, 0.1, 800)), 0)

    assert many.high - many.low < (few.high - few.low) / 2


@pytest.mark.parametrize("ratios", [[], [math.nan], [1.0, math.inf]])
def test_no_numbers_are_refused(ratios: list[float]) -> None:
    with pytest.raises(ConfigError, match="finite numbers"):
        bootstrap_median(ratios, 0)


def test_paired_ratios_divide_run_by_run() -> None:
    interval = bootstrap_paired([2.0, 9.0, 4.0], [1.0, 3.0, 1.0], 0)

    assert interval.value == 3.0
    assert (interval.low, interval.high) == (2.0, 4.0)


def test_unpaired_and_zero_runs_are_refused() -> None:
    with pytest.raises(ConfigError, match="paired"):
        bootstrap_paired([1.0], [1.0, 2.0], 0)
    with pytest.raises(ConfigError, match="above 0"):
        bootstrap_paired([1.0, 1.0], [1.0, 0.0], 0)
