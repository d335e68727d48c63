"""Ratios are ours over theirs, paired by seeds, with the aims that the benchmark has."""

from __future__ import annotations

import pytest

from bana.eval.bench.cluster_cache.figures import (
    Case,
    describe_case,
    find_better_routing,
    list_case,
    list_saturated,
)
from bana.eval.bench.cluster_cache.workloads import Shared


def values(ttft_s: float, balance: float = 1.0) -> dict[str, float]:
    return {"ttft_mean_s": ttft_s, "max_over_mean": balance, "cached_share": 0.5}


SHARING = {
    "least_load": [values(0.5), values(0.6)],
    "predicted_finish": [values(0.4), values(0.4)],
    "round_robin": [values(1.0), values(1.0)],
    "cache_aware": [values(0.5, 2.0), values(0.5, 2.0)],
    "cache_aware_with_store": [values(0.8), values(0.8)],
}


def test_each_routing_is_beside_each_baseline() -> None:
    figures = dict(list_case(Case(Shared.HOT, 4.0, SHARING), 0))
    row = "hot,cv4,predicted_finish"
    assert figures[f"ttft_vs_round_robin[{row}]"].value == pytest.approx(0.4)
    assert figures[f"ttft_vs_round_robin[{row}]"].met is True
    assert figures[f"ttft_vs_cache_aware[{row}]"].value == pytest.approx(0.8)
    assert figures[f"ttft_vs_cache_aware[{row}]"].met is True
    assert figures["ttft_vs_cache_aware[hot,cv4,least_load]"].met is False
    assert figures[f"ttft_vs_cache_aware_with_store[{row}]"].value == pytest.approx(0.5)
    assert figures[f"balance_vs_cache_aware[{row}]"].value == pytest.approx(0.5)
    assert len(figures) == 8


def test_only_hot_prefixes_have_an_aim_beside_cache_aware_routing() -> None:
    figures = dict(list_case(Case(Shared.DOCUMENTS, 1.0, SHARING), 0))
    assert figures["ttft_vs_cache_aware[documents,cv1,least_load]"].met is None


def test_low_sharing_is_beside_no_store() -> None:
    taken = dict.fromkeys(("least_load", "predicted_finish", "no_store"), SHARING["least_load"])
    figures = dict(list_case(Case(Shared.LITTLE, 1.0, taken), 0))
    assert set(figures) == {
        "low_sharing_ttft_vs_no_store[cv1,least_load]",
        "low_sharing_ttft_vs_no_store[cv1,predicted_finish]",
    }
    assert all(figure.value == 1.0 and figure.met for figure in figures.values())


def test_throughput_is_requests_a_second_of_the_same_requests() -> None:
    taken = {
        name: [{"requests_per_s": rate}]
        for name, rate in (("least_load", 3.0), ("predicted_finish", 1.0), ("cache_aware", 2.0))
    }
    figures = dict(list_saturated(Shared.SESSIONS, taken, 0))
    assert figures["throughput_vs_cache_aware[sessions,least_load]"].value == pytest.approx(1.5)


def test_the_better_routing_is_that_of_the_lesser_geometric_mean() -> None:
    case = Case(Shared.HOT, 1.0, SHARING)
    better, loss = find_better_routing([case, case])
    assert (better, loss) == ("predicted_finish", pytest.approx(0.55 / 0.4))
    assert describe_case(case)["least_load"] == {
        "ttft_mean_ms": 550.0,
        "cached_share": 0.5,
        "max_over_mean": 1.0,
    }
