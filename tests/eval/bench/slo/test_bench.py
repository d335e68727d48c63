"""The whole benchmark on stub servers: who is offered what, in which order, and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bana.eval.bench.harness import BenchRequest, Interruption, Session
from bana.eval.bench.slo.bench import measure_fleet
from bana.eval.bench.slo.settings import QUICK, SloWorkload
from bana.eval.bench.trials import open_trials
from bana.slo.figures import Figure

SIDES = ["budget", "fcfs", "shortest-prefill-first"]
CANDIDATES = ((), ("--enable-mixed-chunk",))
SETTINGS = msgspec.structs.replace(
    QUICK,
    workloads=tuple(
        SloWorkload(name, QUICK.workloads[0].shape, 40.0, 40.0, 40.0, QUICK.workloads[0].grid)
        for name in ("w", "unasked")
    ),
    candidates=CANDIDATES,
    stock_orders=tuple(SIDES[1:]),
    requests=6,
    light_requests=3,
)


class Measurement:
    """One run of the benchmark, with what it said."""

    def __init__(self, url: str, fleet: Any, folder: Path) -> None:
        self.fleet = fleet
        self.url, self.folder = url, folder
        self.said: list[str] = []
        path = folder / "trials.jsonl"
        with open_trials(path, "key") as log:
            request = BenchRequest(folder / "out.json", parts=("w",))
            self.session = Session(request, log, self.said.append, Interruption())
            self.figures: dict[str, Figure] = dict(
                measure_fleet(self.session, SETTINGS, self.fleet)
            )

    def list_sides(self, where: str) -> list[str]:
        """Who was measured there, in order."""
        lines = [line.split(" at ")[0] for line in self.said if f", {where}, " in line]
        return [line.rpartition(", ")[2] for line in lines]


@pytest.fixture(scope="module")
def run(
    stub_process, make_fleet: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Measurement]:
    # Slow enough for promises that are multiples of it to be kept on a busy machine.
    with stub_process(chunks=4, first_delay_s=0.2, chunk_interval_s=0.1) as url:
        yield Measurement(url, make_fleet(url), tmp_path_factory.mktemp("slo"))


def test_sides_take_turns_and_an_interrupted_run_starts_nothing_twice(
    run: Measurement, make_fleet: Callable[[str], Any]
) -> None:
    # A stub keeps every promise, so that each side is offered the whole grid.
    assert run.list_sides("load 0.5") == SIDES
    assert run.list_sides("load 1") == SIDES[::-1]
    assert run.list_sides("light load") == SIDES[:2]
    assert run.fleet.most_up == len(SIDES)
    names = [side.name for side in run.fleet.started]
    # Both candidates, and then each side once.
    assert names[:2] == ["fcfs", "fcfs"]
    assert sorted(names[2:]) == sorted(SIDES)

    again = Measurement(run.url, make_fleet(run.url), run.folder)
    assert again.fleet.started == []
    assert again.figures == run.figures
    assert again.session.notes == run.session.notes


def test_every_side_has_its_attainment_and_the_report_says_how_it_was_tuned(
    run: Measurement,
) -> None:
    for side in SIDES:
        assert run.figures[f"lowest_load_attainment[w,{side}]"].value == 1.0
    assert run.figures["light_load_vs_stock[w]"].value > 0
    # Nobody was brought to miss: there is no max rate.
    assert not [name for name in run.figures if name.startswith("max_rate")]
    told = run.session.notes["measured"]
    assert isinstance(told, dict)
    assert set(told) == {"w"}
    assert not any("unasked" in line for line in run.said)
    assert set(told["w"]["tuning_attainment"]) == {"defaults", "--enable-mixed-chunk"}
    assert told["w"]["tuned_flags"] == "defaults"
    assert set(told["w"]["unbracketed"]) == set(SIDES)
    assert told["w"]["isolated"]["tpot_ms"] >= 0
