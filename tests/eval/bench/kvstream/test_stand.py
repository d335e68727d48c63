"""What a step's server is asked, against a cluster that says what it is told to say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bana.eval.bench.clusters import InstanceEntry, StatusEntry, StoreEntry
from bana.eval.bench.errors import BenchError
from bana.eval.bench.harness import BenchRequest, Interruption, Session
from bana.eval.bench.kvstream.settings import QUICK
from bana.eval.bench.kvstream.stand import StepServer, open_stand
from bana.eval.bench.trials import open_trials
from bana.radix_global.admin_messages import PlaceStatus, StoreReport
from bana.slo.wire import LinkReport

COUNTS = {"saved_pages": 0, "late_holds": 2, "faults": 0, "failed_loads": 0}
LINK = LinkReport("attached", "", False, 0, 0, COUNTS, {}, {}, {})
HASTY = msgspec.structs.replace(QUICK, settle_timeout_s=0.0)


def place(number: int, pages: int) -> PlaceStatus:
    counts = {"writes_written": 10 * number, "writes_crowded_out": number}
    return PlaceStatus(number, f"p{number}", pages, 0, 0, counts)


def status(*pages: int, link: LinkReport | None = LINK, is_recovering: bool = False) -> StatusEntry:
    """Tiers with so many pages, over an empty arena."""
    places = (place(0, 0), *(place(number, held) for number, held in enumerate(pages, 1)))
    counts = {"wants_no_room": 3, "wants_missing": 9}
    report = StoreReport(1, 2, 3.0, is_recovering, 1, 2, 4096, places, (), 0.0, 0, counts)
    return StatusEntry((InstanceEntry("i", 0.0, link=link),), StoreEntry(0.0, report))


BLANK = StatusEntry((InstanceEntry("i", 0.0),))


class StubCluster:
    """Says each of its statuses once, and the last one for ever."""

    def __init__(self, *statuses: StatusEntry) -> None:
        self._left: Iterator[StatusEntry] = iter(statuses)
        self._last = statuses[-1]
        self.asked = 0

    def read_status(self) -> StatusEntry:
        self.asked += 1
        return next(self._left, self._last)


def serve(*statuses: StatusEntry, tiers: int = 2, settings: Any = QUICK) -> StepServer:
    return StepServer(StubCluster(*statuses), settings, tiers)  # type: ignore[arg-type]


def test_pages_are_there_once_every_tier_was_looked_through_and_the_instance_knows_it() -> None:
    away = msgspec.structs.replace(LINK, state="away")
    late = [
        BLANK,
        status(8, 8, is_recovering=True),
        status(8, 7),
        status(8, 8, link=away),
        status(8, 8, link=None),
    ]
    cluster = StubCluster(*late, status(8, 9))
    StepServer(cluster, QUICK, 2).await_pages(8)  # type: ignore[arg-type]
    assert cluster.asked == len(late) + 1


def test_pages_that_never_come_end_the_run_with_what_is_there() -> None:
    with pytest.raises(BenchError, match=r"not every tier holds 8 pages .*'p1': 8, 'p2': 7"):
        serve(status(8, 7), settings=HASTY).await_pages(8)
    with pytest.raises(BenchError, match="said nothing of itself"):
        serve(BLANK, settings=HASTY).read_page_bytes()


def test_the_store_says_what_it_holds_and_what_has_happened() -> None:
    server = serve(BLANK, status(8, 7))
    assert server.count_held() == 7
    assert server.read_page_bytes() == 4096
    assert server.count_events() == {
        "wants_no_room": 3,
        "wants_late": 0,
        "wants_failed": 0,
        "late_holds": 2,
        "tier_1_written": 10,
        "tier_1_crowded_out": 1,
        "tier_2_written": 20,
        "tier_2_crowded_out": 2,
    }


def test_without_a_store_there_is_nothing_to_wait_for() -> None:
    server = serve(BLANK, tiers=0, settings=HASTY)
    server.await_pages(8)
    server.settle()
    server.require_sound()
    assert server.count_events() == {}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs a core for each side")
def test_the_client_has_a_core_of_its_own_until_the_end(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    with open_trials(tmp_path / "trials.jsonl", "key") as log:
        request = BenchRequest(tmp_path / "out.json")
        session = Session(request, log, lambda _: None, Interruption())
        with open_stand(session, QUICK) as stand:
            assert len(os.sched_getaffinity(0)) == 1
            assert len(stand.documents) == QUICK.documents
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("name", ["faults", "failed_loads"])
def test_what_went_wrong_in_the_instance_makes_the_start_invalid(name: str) -> None:
    serve(status(8)).require_sound()
    wrong = msgspec.structs.replace(LINK, counts={**COUNTS, name: 1})
    with pytest.raises(BenchError, match=name):
        serve(status(8, link=wrong)).require_sound()
