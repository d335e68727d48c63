"""The stock side gets the flags that keep most promises, and a capacity of its own."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from bana.eval.bench.errors import BenchError
from bana.eval.bench.harness import Scale
from bana.eval.bench.slo.grid import Grid
from bana.eval.bench.slo.points import PointSeen
from bana.eval.bench.slo.settings import (
    BUDGET,
    DEFAULT,
    SCALES,
    TUNED,
    SloSettings,
    SloWorkload,
    describe_slo_settings,
    estimate_minutes,
)
from bana.eval.bench.slo.sides import make_budget_side, make_stock_side, require_memory
from bana.eval.bench.slo.tuning import choose_best, search_capacity, tune_stock

POINT = PointSeen(1.0, 100.0, 100.0, 25.0, 25.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.2, 0.5)
SMALL, MIXED = ("--chunked-prefill-size", "128"), ("--enable-mixed-chunk",)


class Engine:
    """Attains everything up to the capacity of its flags, then ever less."""

    def __init__(self, **capacities_rps: float) -> None:
        self._by_args = {(): "plain", SMALL: "small", MIXED: "mixed"}
        self._capacities_rps = capacities_rps
        self.offered: list[tuple[tuple[str, ...], float]] = []

    def offer(self, args: tuple[str, ...], rate_rps: float) -> PointSeen:
        self.offered.append((args, rate_rps))
        capacity_rps = self._capacities_rps[self._by_args[args]]
        met = 100.0 * min(1.0, capacity_rps / rate_rps)
        return msgspec.structs.replace(POINT, rate_rps=rate_rps, met=met)


def settings_of(*names: str) -> SloSettings:
    shape = DEFAULT.workloads[0].shape
    workloads = [SloWorkload(name, shape, 1.0, 0.1, 16.0, Grid((0.5, 1.0))) for name in names]
    return msgspec.structs.replace(
        DEFAULT, workloads=tuple(workloads), candidates=((), SMALL, MIXED), search_points=6
    )


def test_each_workload_gets_its_own_flags_and_capacity() -> None:
    one = Engine(plain=1.0, small=3.0, mixed=2.0)
    other = Engine(plain=1.0, small=0.5, mixed=0.7)

    tuned = tune_stock(settings_of("one", "other"), {"one": one.offer, "other": other.offer})

    assert (tuned["one"].args, tuned["other"].args) == (SMALL, ())
    # Nine tenths are met a little beyond the capacity.
    assert tuned["one"].capacity_rps == pytest.approx(3.0 / 0.9, rel=0.15)
    assert tuned["other"].capacity_rps == pytest.approx(1.0 / 0.9, rel=0.15)
    assert set(tuned["one"].scores) == {"defaults", " ".join(SMALL), " ".join(MIXED)}


def test_a_candidate_is_done_with_all_workloads_before_the_next_one() -> None:
    order: list[tuple[str, ...]] = []

    def offer(args: tuple[str, ...], rate_rps: float) -> PointSeen:
        order.append(args)
        return Engine(plain=1.0, small=1.0, mixed=1.0).offer(args, rate_rps)

    tune_stock(settings_of("one", "other"), {"one": offer, "other": offer})

    assert [args for args, _ in itertools.groupby(order)][:3] == [(), SMALL, MIXED]
    assert (order.count(SMALL), order.count(MIXED)) == (2, 2)


def test_of_equal_candidates_the_first_is_taken() -> None:
    assert choose_best([0.5, 0.9, 0.9]) == 1
    assert choose_best([0.9, 0.9]) == 0


@pytest.mark.parametrize(("capacity_rps", "found_rps"), [(1e9, 16.0), (1e-9, 0.1)])
def test_a_capacity_out_of_reach_is_the_bound(capacity_rps: float, found_rps: float) -> None:
    settings = settings_of("one")
    engine = Engine(plain=capacity_rps)
    found = search_capacity(
        settings, settings.workloads[0], [], lambda rate: engine.offer((), rate)
    )
    # A search ends within its tolerance of either bound.
    assert found == pytest.approx(found_rps, rel=settings.search_tolerance - 1)


def test_sides_differ_in_who_decides_alone() -> None:
    budget, stock = make_budget_side(DEFAULT), make_stock_side(DEFAULT, TUNED, SMALL)
    pool = ("--max-total-tokens", "16384")
    assert budget.list_words("m") == [
        *("--model", "m", "--set", "scheduling.order=budget"),
        *("--set", "scheduling.governor=tpot", "--", *pool),
    ]
    assert stock.list_words("m") == [
        *("--model", "m", "--set", "engine.scheduler=stock", "--", *pool),
        *("--schedule-policy", "fcfs", "--chunked-prefill-size", "128"),
    ]
    assert (budget.is_bana, budget.name, stock.is_bana) == (True, BUDGET, False)


def test_a_side_without_room_is_not_started() -> None:
    require_memory("lpm", 3 * 2**30, 3 * 2**30)
    with pytest.raises(BenchError, match=r"lpm would need about 3\.0 GiB and 2\.0 GiB"):
        require_memory("lpm", 3 * 2**30, 2 * 2**30)


def test_the_default_scale_is_what_was_asked_for_and_ends_in_time() -> None:
    assert DEFAULT.seeds == 3
    assert DEFAULT.stock_orders == ("fcfs", "lpm", "hrrn", "shortest-prefill-first")
    assert [len(workload.grid.multiples) for workload in DEFAULT.workloads] == [5, 5]
    assert {workload.name for workload in DEFAULT.workloads} == {"conversation", "bursty"}
    assert [workload.shape.cv for workload in DEFAULT.workloads] == [1.09, 2.5]
    flags = {word for args in DEFAULT.candidates for word in args if word.startswith("--")}
    assert flags == {
        "--chunked-prefill-size",
        "--enable-mixed-chunk",
        "--prefill-decode-interval",
    }
    assert estimate_minutes(DEFAULT) <= 120
    assert (
        estimate_minutes(SCALES[Scale.QUICK])
        < estimate_minutes(DEFAULT)
        < estimate_minutes(SCALES[Scale.FULL])
    )


@pytest.mark.parametrize("scale", list(Scale))
def test_settings_name_the_source_and_the_factor(
    scale: Scale, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BANA_DATA", raising=False)
    described = describe_slo_settings(scale)
    sources = described["sources"]
    assert isinstance(sources, dict)
    assert [said.partition(";")[0].split(", ")[-1] for said in sources.values()] == [
        "times 0.1",
        "times 0.08",
    ]
    assert all(said.startswith("synthesised") for said in sources.values())
    assert TUNED in described["stock_orders"]  # type: ignore[operator]
