"""A store is quiet by what was reported since, not by what is repeated."""

from __future__ import annotations

import msgspec
import pytest

from bana.eval.bench.clusters import InstanceEntry, StatusEntry, StoreEntry
from bana.eval.bench.quiet import FRESH_S, QuietWatch, list_done, read_report
from bana.radix_global.admin_messages import PlaceStatus, StoreReport
from bana.slo.wire import LinkReport

LINK = LinkReport("attached", "", False, 0, 0, {"saved_pages": 8}, {}, {}, {})
ARENA = {"pages_being_written": 0, "wanted_pages_being_read": 0}
TIER = {"writes_written": 8, "write_backlog_bytes": 0}


def status(
    age_s: float = 0.0, arena: dict[str, int] | None = None, tier: dict[str, int] | None = None
) -> StatusEntry:
    """What a cluster says whose store spoke so long ago."""
    places = (
        PlaceStatus(0, "arena", 8, 80, 800, {**ARENA, **(arena or {})}),
        PlaceStatus(1, "disk", 8, 80, 800, {**TIER, **(tier or {})}),
    )
    report = StoreReport(1, 2, 3.0, False, 1, 2, 10, places, (), 0.0, 0, {})
    return StatusEntry((InstanceEntry("i", 0.0, link=LINK),), StoreEntry(age_s, report))


def test_quiet_is_what_stays_the_same_from_report_to_report() -> None:
    watch = QuietWatch(begun_s=10.0, quiet_s=2.0)
    assert not watch.note(status(), 10.5)
    assert not watch.note(status(), 12.4)
    assert watch.note(status(), 12.6)


def test_an_old_report_proves_nothing_however_often_it_is_repeated() -> None:
    watch = QuietWatch(begun_s=10.0, quiet_s=1.0)
    assert not watch.note(status(0.5), 10.4)
    assert not watch.note(status(1.9), 11.8)
    # Heard at 11 and still at 11.1, whatever the time is.
    assert not watch.note(status(0.0), 11.0)
    assert not watch.note(status(1.4), 12.5)
    assert watch.note(status(0.5), 12.6)


@pytest.mark.parametrize(
    "busy",
    [
        status(arena={"pages_being_written": 1}),
        status(arena={"wanted_pages_being_read": 1}),
        status(tier={"write_backlog_bytes": 1}),
        status(tier={"writes_written": 9}),
        status(FRESH_S + 0.1),
        msgspec.structs.replace(status(), store=None),
    ],
)
def test_whatever_is_done_meanwhile_begins_it_anew(busy: StatusEntry) -> None:
    watch = QuietWatch(begun_s=0.0, quiet_s=2.0)
    assert not watch.note(status(), 1.0)
    assert not watch.note(busy, 2.0)
    assert not watch.note(status(), 3.5)
    assert watch.note(status(), 5.5)


def test_a_client_that_wants_pages_is_not_done() -> None:
    waiting = msgspec.structs.replace(LINK, wants=1)
    entry = InstanceEntry("i", 0.0, link=waiting)
    watch = QuietWatch(begun_s=0.0, quiet_s=0.0)
    assert not watch.note(msgspec.structs.replace(status(), instances=(entry,)), 1.0)
    assert watch.note(status(), 1.0)


def test_a_store_that_has_fallen_silent_has_said_nothing() -> None:
    assert read_report(status(FRESH_S)) is not None
    assert read_report(status(FRESH_S + 0.1)) is None


def test_every_instance_has_to_have_spoken_and_be_done() -> None:
    first = status().instances[0]
    busy = msgspec.structs.replace(LINK, wants=1)
    for second in (
        msgspec.structs.replace(first, link=None),
        msgspec.structs.replace(first, link=busy),
    ):
        assert list_done(msgspec.structs.replace(status(), instances=(first, second))) is None
    saved = msgspec.structs.replace(LINK, counts={"saved_pages": 3})
    both = (first, msgspec.structs.replace(first, link=saved))
    assert list_done(msgspec.structs.replace(status(), instances=both)) == (8, 3, 8, 8)
