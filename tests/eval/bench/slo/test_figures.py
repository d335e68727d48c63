"""Figures from points: medians over seeds, the best stock side, nothing that is not borne out."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from bana.eval.bench.slo.figures import (
    WorkloadRuns,
    bound_rate,
    find_rates,
    interpolate,
    judge_workload,
)
from bana.eval.bench.slo.points import PointSeen
from bana.eval.capacity import find_max_rate
from bana.eval.summary import LoadPoint

POINT = PointSeen(1.0, 100.0, 100.0, 25.0, 25.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.2, 0.5)
RATES_RPS = (1.0, 2.0, 3.0, 4.0, 5.0)


def curve(edge_rps: float, longest: float = 1.0, p99_s: float = 0.5) -> list[PointSeen]:
    """Attains all up to half a request a second below the edge, nine tenths at it."""

    def attain(rate_rps: float) -> float:
        return min(1.0, max(0.0, 0.9 - 0.2 * (rate_rps - edge_rps)))

    return [
        msgspec.structs.replace(
            POINT,
            rate_rps=rate,
            met=100 * attain(rate),
            longest_met=25.0 * longest,
            ttft_p99_s=p99_s * rate,
        )
        for rate in RATES_RPS
    ]


def light(*ttfts_s: float) -> list[PointSeen]:
    return [msgspec.structs.replace(POINT, ttft_mean_s=ttft_s) for ttft_s in ttfts_s]


RUNS = WorkloadRuns(
    name="w",
    curves={
        "budget": [curve(4.0, longest=0.8), curve(4.5, longest=0.8), curve(3.0, longest=0.8)],
        "fcfs": [curve(2.0), curve(1.5), curve(2.0)],
        "lpm": [curve(2.5, longest=0.6), curve(2.5, longest=0.6), curve(1.5, longest=0.6)],
    },
    light={"budget": light(0.2, 0.2, 0.25), "fcfs": light(0.2, 0.3, 0.2)},
    target=0.9,
    p99_limit_s=100.0,
)


def test_the_best_stock_side_is_that_with_the_highest_median() -> None:
    rates = find_rates(RUNS, None)
    assert rates.best == "lpm"
    assert np.array(rates.list_pairs()) == pytest.approx(
        np.array([(4.0, 2.5), (4.5, 2.5), (3.0, 1.5)])
    )


def test_ratios_are_taken_seed_by_seed() -> None:
    figures = judge_workload(RUNS).figures
    ratio = figures["max_rate_vs_best_stock[w]"]
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.8, 1.6, 2.0))
    assert (ratio.aim, ratio.met) == (">= 1.5", True)
    assert figures["max_rate_rps[w,budget]"].value == pytest.approx(4.0)
    misses = figures["misses_vs_best_stock_at_its_90[w]"]
    # Nothing is missed at the best stock side's max rate.
    assert (misses.high, misses.met) == (pytest.approx(0.0, abs=1e-9), True)
    lights = figures["light_load_vs_stock[w]"]
    assert (lights.value, lights.low, lights.high) == pytest.approx((1.0, 0.8, 1.5))
    assert lights.met is False


def test_the_longest_prompts_of_all_sides_stand_side_by_side() -> None:
    figures = judge_workload(RUNS).figures
    shares = {
        name: figures[f"longest_quartile_attainment[{name}]"].value
        for name in ("w", "w,fcfs", "w,lpm")
    }
    assert shares == pytest.approx({"w": 0.8, "w,fcfs": 1.0, "w,lpm": 0.6})


def test_a_bound_on_the_p99_lowers_the_rate_of_those_who_let_some_wait() -> None:
    limit_s = 3.0
    slow = {**RUNS.curves, "budget": [curve(4.0, p99_s=1.5)] * 3}
    found = judge_workload(msgspec.structs.replace(RUNS, curves=slow, p99_limit_s=limit_s))
    # Its p99 reaches the limit at 2/s; the stock sides keep it everywhere.
    bounded = found.figures["max_rate_vs_best_stock_p99_bounded[w]"]
    assert bounded.low == pytest.approx(2.0 / 2.5)
    assert bounded.aim is None
    assert found.figures["max_rate_vs_best_stock[w]"].low == pytest.approx(1.6)


def test_a_seed_without_a_bracket_makes_no_figure_and_is_told() -> None:
    never_held = {**RUNS.curves, "budget": [curve(4.0), curve(4.0), curve(0.0)]}
    found = judge_workload(msgspec.structs.replace(RUNS, curves=never_held))
    assert "max_rate_vs_best_stock[w]" not in found.figures
    assert "max_rate_rps[w,budget]" not in found.figures
    # Its misses at the stock side's rate are known all the same.
    assert "misses_vs_best_stock_at_its_90[w]" in found.figures
    told = found.notes["unbracketed"]
    assert isinstance(told, dict)
    assert "offer less" in told["budget"][0]
    assert found.figures["lowest_load_attainment[w,budget]"].low == pytest.approx(0.7)


def test_without_any_stock_rate_nothing_is_compared_at_it() -> None:
    never_held = {side: [curve(0.0)] * 3 for side in RUNS.curves}
    figures = judge_workload(msgspec.structs.replace(RUNS, curves=never_held)).figures
    rates = ("max_rate_vs_best_stock[", "max_rate_vs_best_stock_p99_bounded[")
    compared = (*rates, "misses_vs", "longest_quartile")
    assert not [name for name in figures if name.startswith(compared)]
    # Who holds nothing carries nothing at least.
    assert figures["max_rate_vs_best_stock_at_least[w]"].value == 0
    assert "light_load_vs_stock[w]" in figures


def test_what_is_not_bracketed_bounds_the_ratio_from_below() -> None:
    # Held at all of 1 to 5/s, against 2.5, 2.2 and less than 1/s.
    curves = {**RUNS.curves, "budget": [curve(9.0)] * 3}
    curves["lpm"] = [curve(2.5), curve(2.2), curve(0.0)]
    figures = judge_workload(msgspec.structs.replace(RUNS, curves=curves)).figures
    least = figures["max_rate_vs_best_stock_at_least[w]"]
    assert (least.low, least.value, least.high) == pytest.approx((2.0, 5 / 2.2, 5.0))
    assert (least.aim, least.met) == (">= 1.5", True)
    assert "max_rate_vs_best_stock[w]" not in figures
    # A stock side that held everything may carry any rate.
    curves["lpm"] = [curve(9.0)] * 3
    figures = judge_workload(msgspec.structs.replace(RUNS, curves=curves)).figures
    assert not [name for name in figures if name.startswith("max_rate_vs_best_stock")]


def test_of_stock_sides_that_hold_nothing_the_best_attains_most() -> None:
    curves = {side: [curve(0.0)] * 3 for side in RUNS.curves} | {"lpm": [curve(0.5)] * 3}
    assert find_rates(msgspec.structs.replace(RUNS, curves=curves), None).best == "lpm"


def test_points_that_prove_nothing_count_nowhere() -> None:
    spoilt = [msgspec.structs.replace(p, is_valid=0.0, met=0.0) for p in curve(4.0)[1:2]]
    curves = {**RUNS.curves, "budget": [[*curve(4.0), *spoilt]] * 3}
    found = judge_workload(msgspec.structs.replace(RUNS, curves=curves))
    assert found.figures["max_rate_vs_best_stock[w]"].value == pytest.approx(4.0 / 2.5)
    assert found.figures["misses_vs_best_stock_at_its_90[w]"].high == pytest.approx(0, abs=1e-9)
    assert found.notes["invalid_points"] == 3


@pytest.mark.parametrize(
    ("attained", "p99_limit_s", "bound_rps"),
    [([1.0, 1.0], None, 2.0), ([0.5, 0.4], None, 0.0), ([1.0, 1.0], 0.1, 0.0)],
)
def test_an_unbracketed_rate_has_a_bound(
    attained: list[float], p99_limit_s: float | None, bound_rps: float
) -> None:
    points = [LoadPoint(1.0 + i, share, 0.5) for i, share in enumerate(attained)]
    found = find_max_rate(points, 0.9, p99_limit_s)
    assert found.rps is None
    assert bound_rate(found, p99_limit_s) == bound_rps


def test_values_are_known_between_points_only() -> None:
    points = [(2.0, 0.5), (1.0, 1.0)]
    assert interpolate(points, 1.5) == pytest.approx(0.75)
    assert interpolate(points, 1.0) == 1.0
    assert interpolate(points, 2.1) is None
    assert interpolate([], 1.0) is None
