"""The whole benchmark on a stub server: who is offered what, in which order, and what is kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bana.eval.bench.cluster_cache import handing
from bana.eval.bench.cluster_cache.bench import measure_workloads
from bana.eval.bench.cluster_cache.settings import QUICK, CacheSide
from bana.eval.bench.cluster_cache.sides import Door
from bana.eval.bench.clusters import HandoffEntry, InstanceEntry, StatusEntry
from bana.eval.bench.errors import BenchError
from bana.eval.bench.harness import BenchRequest, Interruption, Session
from bana.eval.bench.trials import open_trials
from bana.eval.client.target import Target
from bana.eval.requests import Offered

SETTINGS = msgspec.structs.replace(QUICK, seeds=2, requests=6, timed_prompts=1, load=0.05)
SHARING = ["least_load", "predicted_finish", "round_robin", "cache_aware", "cache_aware_with_store"]
TUNING = ["cache_aware", "cache_aware"]
SATURATED = ["least_load", "predicted_finish", "cache_aware"]
LITTLE = ["least_load", "predicted_finish", "no_store"]


class StubServed:
    """A cluster whose requests all go to one stub; `sent` is what it tells of hand-offs."""

    def __init__(self, url: str) -> None:
        self.front_door = Target(url)
        self.roles = {"a": "both", "b": "both"}
        self.sent = 0

    def command(self, *words: str) -> None:
        assert words[:2] == ("roles", "set")
        self.roles[words[2]] = words[3]

    def read_status(self) -> StatusEntry:
        instances = tuple(InstanceEntry(name) for name in self.roles)
        return StatusEntry(instances, handoff=HandoffEntry(self.sent))


class StubFleet:
    """Notes which sides are opened, in order."""

    def __init__(self, url: str) -> None:
        self.opened: list[str] = []
        self.thresholds: set[int] = set()
        self.served = StubServed(url)

    @contextlib.contextmanager
    def open(self, side: CacheSide, threshold: int) -> Iterator[Door]:
        self.opened.append(side.name)
        self.thresholds.add(threshold)
        yield Door(side, self.served.front_door, self.served)  # type: ignore[arg-type]


@contextlib.contextmanager
def open_session(folder: Path) -> Iterator[Session]:
    with open_trials(folder / "trials.jsonl", "key") as log:
        request = BenchRequest(folder / "out.json")
        yield Session(request, log, lambda _: None, Interruption())


@pytest.fixture(scope="module")
def stub(stub_process: Callable[..., AbstractContextManager[str]]) -> Iterator[str]:
    with stub_process(chunks=4, first_delay_s=0.005, chunk_interval_s=0.001) as url:
        yield url


def test_sides_take_turns_and_an_interrupted_run_measures_nothing_twice(
    stub: str, tmp_path: Path
) -> None:
    fleet = StubFleet(stub)
    with open_session(tmp_path) as session:
        figures = measure_workloads(session, SETTINGS, fleet, tmp_path)
        told: Any = session.notes["measured"]
    hot = ["no_store", *TUNING, *SHARING, *SHARING[::-1], *SATURATED, *SATURATED[::-1]]
    assert fleet.opened == [*hot, "no_store", *LITTLE, *LITTLE[::-1]]
    assert fleet.thresholds >= {2, 64}
    assert told["hot,cv1"]["cache_aware_threshold"] in (2, 64)
    assert set(told["low_sharing,cv1"]) == {"rate_rps", "cache_aware_threshold", *LITTLE}
    assert told["better_routing"]["policy"] in ("least_load", "predicted_finish")
    assert len(figures) == 2 * 4 + 2 + 2

    again = StubFleet(stub)
    with open_session(tmp_path) as session:
        assert measure_workloads(session, SETTINGS, again, tmp_path) == figures
        assert session.notes["measured"] == told
    assert again.opened == []


def test_a_hand_off_counts_only_where_every_prompt_was_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, lost = StubFleet("http://127.0.0.1:1"), [0]
    served = fleet.served

    def answer(settings: Any, door: Door, prompts: Sequence[Offered]) -> float:
        if served.roles == {"a": "prefill", "b": "decode"}:
            served.sent += len(prompts) - lost[0]
            return 0.3
        return 0.2

    monkeypatch.setattr(handing, "time_ttft_s", answer)
    with open_session(tmp_path) as session:
        figures = handing.measure_handoff(session, SETTINGS, fleet)
    assert figures["handoff_added_ttft_ms"].value == pytest.approx(100.0)
    (tmp_path / "trials.jsonl").unlink()
    lost[0] = 1
    with (
        open_session(tmp_path) as session,
        pytest.raises(BenchError, match="handed: 1 prompts were handed over, expected 2"),
    ):
        handing.measure_handoff(session, SETTINGS, fleet)
    # Whatever went wrong, both instances are there for both afterwards.
    assert served.roles == {"a": "both", "b": "both"}
