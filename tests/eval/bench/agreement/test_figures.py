"""The worst point is the figure, among those that may be judged."""

from __future__ import annotations

import msgspec
import pytest

from bana.eval.bench.agreement.figures import Compared, Pair, Range, list_figures
from bana.eval.bench.slo.points import PointSeen
from bana.slo.figures import Figure

POINT = PointSeen(1.0, 100.0, 100.0, 25.0, 25.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.2, 0.5)
JUDGED = Range(0.5, 0.95)


def seen(attainment: float, ttft_s: float | None = 1.0, is_valid: float = 1.0) -> PointSeen:
    return msgspec.structs.replace(
        POINT, met=100 * attainment, ttft_mean_s=ttft_s, is_valid=is_valid
    )


def compare(live: PointSeen, simulated: PointSeen) -> Compared:
    return Compared(0, 1.0, (Pair(live, simulated, 1.0),))


def figures(*points: Compared, side: str = "budget") -> dict[str, Figure]:
    return dict(list_figures("w", side, points, JUDGED))


def test_the_worst_point_of_either_sign_is_the_value() -> None:
    found = figures(
        compare(seen(0.90, 2.0), seen(0.88, 2.5)),
        compare(seen(0.70, 2.0), seen(0.62, 1.0)),
        compare(seen(0.60, 2.0), seen(0.65, 2.2)),
    )
    attainment = found["live_vs_sim_attainment_error[w]"]
    assert (attainment.value, attainment.low, attainment.high) == pytest.approx((0.08, 0.02, 0.08))
    assert (attainment.aim, attainment.met) == ("<= 0.1", True)
    ttft = found["live_vs_sim_ttft_error[w]"]
    assert (ttft.value, ttft.low) == pytest.approx((0.5, 0.1))
    assert ttft.aim is None


def test_one_bad_point_misses_the_aim() -> None:
    found = figures(
        compare(seen(0.9), seen(0.9)), compare(seen(0.7), seen(0.5)), compare(seen(0.6), seen(0.6))
    )
    assert found["live_vs_sim_attainment_error[w]"].met is False


def test_attainment_is_judged_where_not_all_or_nothing_is_met() -> None:
    outside = [compare(seen(0.96), seen(0.1)), compare(seen(0.49), seen(0.9))]
    assert "live_vs_sim_attainment_error[w]" not in figures(*outside)
    assert "live_vs_sim_ttft_error[w]" in figures(*outside)
    edges = figures(*outside, compare(seen(0.95), seen(0.95)), compare(seen(0.5), seen(0.53)))
    assert edges["live_vs_sim_attainment_error[w]"].value == pytest.approx(0.03)


def test_points_that_prove_nothing_count_nowhere() -> None:
    spoilt = compare(seen(0.7, is_valid=0.0), seen(0.1, 9.0))
    assert figures(spoilt) == {}
    assert spoilt.describe()["is_valid"] is False
    assert figures(spoilt, compare(seen(0.7), seen(0.7)))["live_vs_sim_ttft_error[w]"].value == 0


def test_a_point_without_a_first_token_has_no_ttft_to_compare() -> None:
    found = figures(compare(seen(0.6, None), seen(0.6)), compare(seen(0.6), seen(0.6, None)))
    assert set(found) == {"live_vs_sim_attainment_error[w]", "live_vs_live_attainment_error[w]"}


def test_other_sides_have_rows_of_their_own_and_no_aim() -> None:
    found = figures(compare(seen(0.7), seen(0.4)), side="fcfs")
    assert found["live_vs_sim_attainment_error[w,fcfs]"].aim is None
    assert set(found) == {
        "live_vs_sim_attainment_error[w,fcfs]",
        "live_vs_live_attainment_error[w,fcfs]",
        "live_vs_sim_ttft_error[w,fcfs]",
    }


def test_what_is_compared_are_the_means_of_all_runs_of_a_point() -> None:
    pairs = (
        Pair(seen(0.9, 1.0), seen(0.8, 3.0), 1.0),
        Pair(seen(0.7, 3.0), seen(0.8, 2.0), 1.1),
    )
    found = figures(Compared(0, 1.0, pairs))
    assert found["live_vs_sim_attainment_error[w]"].value == pytest.approx(0.0)
    assert found["live_vs_live_attainment_error[w]"].value == pytest.approx(0.2)
    assert found["live_vs_live_attainment_error[w]"].aim is None
    assert found["live_vs_sim_ttft_error[w]"].value == pytest.approx(0.25)
    late = msgspec.structs.replace(pairs[1], live=seen(0.7, 3.0, is_valid=0.0))
    assert figures(Compared(0, 1.0, (pairs[0], late))) == {}


def test_a_reader_sees_both_of_every_run() -> None:
    pairs = (Pair(seen(0.7, 2.0), seen(0.6, None), 1.0), Pair(seen(0.8, 3.0), seen(0.6), 1.25))
    told = Compared(3, 1.35, pairs).describe()
    assert (told["seed"], told["load"], told["pace"]) == (3, 1.35, [1.0, 1.25])
    assert told["attainment"] == {"live": [0.7, 0.8], "simulated": [0.6, 0.6]}
    assert told["ttft_mean_s"] == {"live": [2.0, 3.0], "simulated": [None, 1.0]}
