"""The whole benchmark on stub servers: what is fitted where, and what an interruption costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bana.eval.bench.agreement.bench import list_sides, measure_fleet
from bana.eval.bench.agreement.settings import (
    DECISION_LOG_BYTES,
    DEFAULT,
    QUICK,
    SCALES,
    describe_agreement_settings,
    estimate_minutes,
)
from bana.eval.bench.harness import BenchRequest, Interruption, Scale, Session
from bana.eval.bench.slo.settings import BUDGET_POLICIES, SloWorkload
from bana.eval.bench.trials import open_trials
from bana.slo.figures import Figure

SIDES = ["budget", "fcfs"]
SHAPE, GRID = QUICK.workloads[0].shape, QUICK.workloads[0].grid
SETTINGS = msgspec.structs.replace(
    QUICK, workloads=(SloWorkload("w", SHAPE, 20.0, 20.0, 20.0, GRID),), requests=6, repeats=2
)


class Measurement:
    """One run of the benchmark, with what it said."""

    def __init__(self, url: str, fleet: Any, folder: Path) -> None:
        self.url, self.fleet, self.folder = url, fleet, folder
        self.said: list[str] = []
        with open_trials(folder / "trials.jsonl", "key") as log:
            request = BenchRequest(folder / "out.json")
            self.session = Session(request, log, self.said.append, Interruption())
            self.figures: dict[str, Figure] = dict(measure_fleet(self.session, SETTINGS, fleet))

    @property
    def told(self) -> dict[str, Any]:
        measured = self.session.notes["measured"]
        assert isinstance(measured, dict)
        return dict(measured["w"])

    def list_sides(self, where: str) -> list[str]:
        """Who was measured there, in order."""
        lines = [
            line.split(" at ")[0] for line in self.said if f", {where}, " in line and " at " in line
        ]
        return [line.rpartition(", ")[2] for line in lines]


@pytest.fixture(scope="module")
def run(
    stub_process, make_fleet: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Measurement]:
    # As the model in the stub's decision log, but for what the wire and the machine add.
    with stub_process(chunks=4, first_delay_s=0.2, chunk_interval_s=0.1) as url:
        yield Measurement(url, make_fleet(url), tmp_path_factory.mktemp("agreement"))


def test_the_fit_is_taken_before_and_apart_from_what_is_judged(run: Measurement) -> None:
    fit = next(place for place, line in enumerate(run.said) if line.startswith("w, fit at 20/s"))
    judged = [place for place, line in enumerate(run.said) if line.startswith("w, seed ")]
    assert judged
    assert fit < min(judged)
    assert not [line for line in run.said if "kept from" in line]
    assert run.told["fit"]["seed"] == SETTINGS.seeds
    points = [point for side in SIDES for point in run.told["points"][side]]
    assert {point["seed"] for point in points} == set(range(SETTINGS.seeds))
    assert run.told["budget"]["step_times"]["prefill_base_s"] == 0.1


def test_all_loads_are_offered_to_both_sides_in_turn_live_and_simulated(run: Measurement) -> None:
    for repeat, turned in enumerate((False, True), start=1):
        forth, back = (SIDES[::-1], SIDES) if turned else (SIDES, SIDES[::-1])
        assert run.list_sides(f"load 0.5, run {repeat}") == forth
        assert run.list_sides(f"load 1, run {repeat}") == back
    ours, theirs = (
        [(point["load"], point["rate_rps"]) for point in run.told["points"][side]] for side in SIDES
    )
    assert ours == theirs
    [carried_rps] = {round(rate_rps / load, 3) for load, rate_rps in ours}
    # The twin, which batches, carries more than the search of a single point found.
    assert carried_rps > run.told["capacity_rps"]
    for side in SIDES:
        for point in run.told["points"][side]:
            # A stub keeps every promise, and so does an engine as fast as it.
            assert point["attainment"] == {"live": [1.0, 1.0], "simulated": [1.0, 1.0]}
            assert min(point["ttft_mean_s"]["simulated"]) > 0
            # A stub is as fast at any time.
            assert point["pace"] == pytest.approx([1.0, 1.0], rel=0.2)
        assert run.told[side]["engine"]["tokens_seen"] == "after_next"
        assert run.told[side]["door_ms"] >= 0
    assert run.told["fcfs"]["engine"]["overtaking"] == "never"
    # All is met: no attainment can be judged.
    assert set(run.figures) == {"live_vs_sim_ttft_error[w]", "live_vs_sim_ttft_error[w,fcfs]"}


def test_an_interrupted_run_starts_no_server_for_what_it_has(
    run: Measurement, make_fleet: Callable[[str], Any]
) -> None:
    assert [side.name for side in run.fleet.started] == SIDES
    again = Measurement(run.url, make_fleet(run.url), run.folder)
    assert again.fleet.started == []
    assert again.figures == run.figures
    assert again.session.notes == run.session.notes


def test_the_budget_side_logs_and_decides_with_what_is_simulated() -> None:
    budget, stock = list_sides(DEFAULT).values()
    assert set(BUDGET_POLICIES) < set(budget.settings)
    assert f"scheduling.decision_log_bytes={DECISION_LOG_BYTES}" in budget.settings
    assert {"scheduling.head_rows=64", "scheduling.max_started=16"} < set(budget.settings)
    assert (budget.is_bana, stock.is_bana) == (True, False)
    assert stock.settings == ("engine.scheduler=stock",)


def test_the_default_scale_ends_in_time_and_a_request_is_a_fortieth() -> None:
    assert DEFAULT.requests == 40
    assert estimate_minutes(DEFAULT) <= 30
    assert (
        estimate_minutes(QUICK) < estimate_minutes(DEFAULT) < estimate_minutes(SCALES[Scale.FULL])
    )


@pytest.mark.parametrize("scale", list(Scale))
def test_settings_name_policies_and_sources(scale: Scale, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BANA_DATA", raising=False)
    # Also where the tests themselves are kept to one core.
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    described = describe_agreement_settings(scale)
    assert "scheduling.order=budget" in described["policies"]  # type: ignore[operator]
    sources = described["sources"]
    assert isinstance(sources, dict)
    assert all(said.startswith("synthesised") for said in sources.values())
