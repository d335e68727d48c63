from __future__ import annotations

import msgspec
import pytest

from bana.eval.requests import (
    Ending,
    Limits,
    LoadRun,
    Observed,
    Phase,
    Validity,
    Workload,
)
from bana.eval.runs import (
    RunAbout,
    RunRecord,
    Window,
    place_window,
    select_window,
    tell_about,
)
from bana.slo.errors import ConfigError

ABOUT = RunAbout("http://127.0.0.1:1", 3, "abc", {"rate_rps": 2.0})


def due(index: int, due_s: float, phase: Phase) -> Observed:
    return Observed(index, due_s, Ending.FINISHED, "default", Limits(), phase, 1, 1)


def run_of(window_s: float, **due_s: list[float]) -> LoadRun:
    phases = [(Phase(name), at_s) for name, times_s in due_s.items() for at_s in times_s]
    observed = tuple(due(i, at_s, phase) for i, (phase, at_s) in enumerate(phases))
    return LoadRun(observed, (), (), window_s, 99.0, Validity(True))


@pytest.mark.parametrize(
    ("due_s", "start_s"),
    [
        ({"window": [0.5, 9.0]}, 0.0),
        ({"warmup": [0.0, 4.0], "window": [5.5, 12.0]}, 5.5),
        ({"warmup": [0.0, 4.0], "window": [5.5, 12.0], "cooldown": [15.2]}, 5.2),
        ({"window": [5.5, 14.0]}, 4.0),
        ({"warmup": [0.0, 4.0]}, 4.0),
        ({}, 0.0),
    ],
)
def test_the_window_is_found_from_the_phases(due_s: dict[str, list[float]], start_s: float) -> None:
    window = place_window(run_of(10.0, **due_s), ABOUT)

    assert window.start_s == pytest.approx(start_s)
    assert window.length_s == 10.0


def test_a_window_that_is_told_is_not_looked_for() -> None:
    told = msgspec.structs.replace(ABOUT, window_start_s=5.0)

    assert place_window(run_of(10.0, warmup=[1.0], window=[7.0]), told) == Window(5.0, 10.0)


def test_a_window_holds_its_start_and_not_its_end() -> None:
    window = Window(5.0, 10.0)

    assert [window.holds(at_s) for at_s in (4.9, 5.0, 14.9, 15.0)] == [False, True, True, False]


@pytest.mark.parametrize("window_s", [0.0, -1.0, float("nan")])
def test_a_window_without_length_is_refused(window_s: float) -> None:
    with pytest.raises(ConfigError, match="window_s"):
        place_window(run_of(window_s), ABOUT)


def test_only_requests_of_the_window_count_in_schedule_order() -> None:
    counted = select_window(run_of(10.0, warmup=[1.0], window=[7.0, 3.0, 5.0], cooldown=[14.0]))

    assert [o.due_s for o in counted] == [3.0, 5.0, 7.0]


def test_a_run_remembers_its_workload() -> None:
    workload = Workload((), 10.0, 3, "abc", {"rate_rps": 2.0})

    assert tell_about(workload, ABOUT.target) == ABOUT


def test_a_workload_that_knows_its_warm_up_places_its_window() -> None:
    workload = Workload((), 10.0, 3, "abc", {"warmup_s": 5})

    assert tell_about(workload, "t").window_start_s == 5.0


def test_a_record_survives_being_written() -> None:
    record = RunRecord(ABOUT, run_of(10.0, warmup=[1.0], window=[7.0]))

    assert msgspec.json.decode(msgspec.json.encode(record), type=RunRecord) == record
