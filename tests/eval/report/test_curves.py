import random

import pytest

from bana.eval.report.curves import (
    MAX_BINS,
    Bins,
    count_bins,
    plan_bins,
    summarise_bins,
    trace_ecdf,
)


def test_small_sets_keep_every_value() -> None:
    curve = trace_ecdf([3.0, 1.0, 2.0])
    assert curve is not None
    assert curve.xs == (1.0, 1.0, 2.0, 3.0)
    assert curve.ys == pytest.approx((0, 1 / 3, 2 / 3, 1))


def test_large_sets_are_thinned_and_keep_both_ends() -> None:
    rng = random.Random(4)
    values = [rng.random() for _ in range(20_000)]
    curve = trace_ecdf(values)
    assert curve is not None
    assert len(curve.xs) < 80
    assert (curve.xs[0], curve.xs[-1]) == (min(values), max(values))
    for x, y in zip(curve.xs[1:], curve.ys[1:], strict=True):
        assert sum(v <= x for v in values) / len(values) == pytest.approx(y, abs=1e-4)


def test_nothing_has_no_curve() -> None:
    assert trace_ecdf([]) is None


@pytest.mark.parametrize("end_s", [0.0, 0.5, 149.0, 151.0, 3600.0, 1e6])
def test_bins_cover_the_run_and_are_bounded(end_s: float) -> None:
    bins = plan_bins(0.0, end_s)
    assert 1 <= bins.count <= MAX_BINS
    assert bins.end_s >= end_s
    assert len(bins.edges_s) == bins.count + 1


def test_bins_begin_before_zero_where_the_run_does() -> None:
    bins = plan_bins(-3.0, 4.0)
    assert bins.start_s == -3.0
    assert bins.end_s >= 4.0


def test_counts_add_up_and_strays_go_to_the_nearest_bin() -> None:
    bins = Bins(0.0, 2.0, 3)
    assert count_bins([-5.0, 0.0, 1.9, 2.0, 5.9, 99.0], bins) == (3, 1, 2)
    assert count_bins([], bins) == (0, 0, 0)


def test_summaries_skip_empty_bins() -> None:
    summary = summarise_bins([0.1, 0.2, 0.3, 4.5], [1.0, 9.0, 2.0, 7.0], Bins(0.0, 1.0, 5))
    assert summary.middles_s == (0.5, 4.5)
    assert summary.medians == (2.0, 7.0)
    assert summary.largest == (9.0, 7.0)
    assert summarise_bins([], [], Bins(0.0, 1.0, 5)).middles_s == ()
