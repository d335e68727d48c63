"""What becomes of wants, told by example."""

from __future__ import annotations

from typing import Any

import pytest

from bana.radix_global.daemon.weather import ReadWeather
from bana.radix_global.messages import (
    Arrived,
    Cancel,
    Known,
    Lost,
    Prefetch,
    Release,
    Settled,
    TierWeather,
    WantOutcome,
)
from bana.radix_global.stores.store import ReadOutcome

SOON = 200.0


def prefetch(shop: Any, name: str, want: int, path: str, deadline_s: float = SOON) -> list[Any]:
    return list(shop.hear(name, Prefetch(want, shop.keys(path), 110.0, deadline_s)))


def outcomes(events: list[Any]) -> list[tuple[str, int]]:
    return [(event.outcome, event.pages) for event in events if isinstance(event, Settled)]


def arrived(events: list[Any]) -> list[tuple[int, bytes]]:
    return [(event.first, event.origins) for event in events if isinstance(event, Arrived)]


def test_what_is_in_the_arena_is_there_at_once(shop: Any) -> None:
    shop.attach("a")
    shop.publish("a", "xyz")
    known, came, end = prefetch(shop, "a", 1, "xyz")
    assert known == Known(1, b"\1\1\1")
    assert (came.first, came.origins) == (0, b"\0\0\0")
    assert end == Settled(1, WantOutcome.COMPLETE, 3)


def test_pages_are_handed_over_in_the_order_of_the_prefix(shop: Any) -> None:
    shop.attach("a")
    shop.find_on_tier("xyz")
    shop.publish("a", "xyzv", after="xyz")
    assert arrived(prefetch(shop, "a", 1, "xyzv")) == []
    shop.read()
    assert arrived(shop.told("a")) == [(0, b"\1")]
    shop.read(pages=2)
    events = shop.told("a")
    assert arrived(events) == [(1, b"\1\1\0")]
    assert outcomes(events) == [(WantOutcome.COMPLETE, 4)]


def test_a_page_is_read_once_for_all_who_want_it(shop: Any) -> None:
    for name in "ab":
        shop.attach(name)
    shop.find_on_tier("x")
    prefetch(shop, "a", 1, "x")
    prefetch(shop, "b", 1, "x")
    shop.read(pages=9)
    assert shop.books.counts["pages_read"] == 1
    first, second = (next(e for e in shop.told(name) if isinstance(e, Arrived)) for name in "ab")
    assert first.slots == second.slots


def test_a_prefix_that_is_known_in_part_ends_as_missing(shop: Any) -> None:
    shop.attach("a")
    shop.publish("a", "x")
    assert outcomes(prefetch(shop, "a", 1, "xy")) == [(WantOutcome.MISSING, 1)]
    assert outcomes(prefetch(shop, "a", 2, "q")) == [(WantOutcome.MISSING, 0)]


def test_a_page_that_no_tier_gives_ends_the_want_before_it(shop: Any) -> None:
    shop.attach("a")
    shop.find_on_tier("xyz")
    prefetch(shop, "a", 1, "xyz")
    shop.read()
    shop.read(ReadOutcome.CORRUPT)
    events = shop.told("a")
    assert arrived(events) == [(0, b"\1")]
    assert outcomes(events) == [(WantOutcome.FAILED, 1)]
    assert shop.books.counts["reads_corrupt"] == 1
    # Nobody waits for the third page any more: it is not read.
    assert shop.books.counts["pages_cancelled"] == 0
    shop.read()
    assert shop.books.counts["pages_cancelled"] == 1


def test_a_bad_page_is_forgotten_where_the_tier_has_dropped_it(shop: Any) -> None:
    shop.attach("a")
    shop.find_on_tier("x")
    shop.tiers[1].keys.clear()
    prefetch(shop, "a", 1, "x")
    shop.read(ReadOutcome.CORRUPT)
    assert shop.index.match(shop.keys("x")).pages == 0


def test_a_page_that_the_tier_still_holds_is_kept_after_a_fault(shop: Any) -> None:
    shop.attach("a")
    shop.find_on_tier("x")
    prefetch(shop, "a", 1, "x")
    shop.read(ReadOutcome.FAILED)
    assert outcomes(shop.told("a")) == [(WantOutcome.FAILED, 0)]
    assert shop.index.match(shop.keys("x")).pages == 1


def test_a_want_is_settled_at_its_deadline_with_what_has_arrived(shop: Any) -> None:
    shop.attach("a")
    shop.find_on_tier("xy")
    prefetch(shop, "a", 1, "xy", deadline_s=105.0)
    shop.read()
    assert shop.books.next_deadline_s() == 105.0
    shop.books.tick(104.9)
    shop.books.tick(105.0)
    assert outcomes(shop.told("a")) == [(WantOutcome.LATE, 1)]
    assert shop.books.next_deadline_s() is None


def test_whoever_waits_longer_than_the_first_has_the_page_read_again(shop: Any) -> None:
    for name in "ab":
        shop.attach(name)
    shop.find_on_tier("x")
    prefetch(shop, "a", 1, "x", deadline_s=105.0)
    prefetch(shop, "b", 1, "x", deadline_s=SOON)
    shop.now_s = 106.0
    shop.reader.board.expire(shop.now_s)
    shop.books.note_reads(shop.take_reads(), shop.now_s)
    shop.books.tick(shop.now_s)
    assert outcomes(shop.told("a")) == [(WantOutcome.LATE, 0)]
    shop.read()
    assert outcomes(shop.told("b")) == [(WantOutcome.COMPLETE, 1)]


def test_who_comes_after_everybody_left_is_served_all_the_same(shop: Any) -> None:
    shop.attach("a")
    shop.find_on_tier("x")
    prefetch(shop, "a", 1, "x")
    shop.hear("a", Release(1))
    prefetch(shop, "a", 2, "x")
    shop.read()
    shop.read()
    assert outcomes(shop.told("a")) == [(WantOutcome.COMPLETE, 1)]


def test_what_is_published_meanwhile_need_not_be_read(shop: Any) -> None:
    for name in "ab":
        shop.attach(name)
    shop.find_on_tier("x")
    prefetch(shop, "a", 1, "x")
    shop.publish("b", "x")
    events = shop.told("a")
    assert arrived(events) == [(0, b"\0")]
    shop.read()
    assert shop.books.counts["pages_cancelled"] == 1


def test_a_page_that_was_read_just_before_it_was_published_frees_its_slot(shop: Any) -> None:
    shop.attach("a")
    shop.find_on_tier("x")
    prefetch(shop, "a", 1, "x")
    lane = shop.reader.board.lanes(1)[0]
    shop.reader.board.next_read(lane, shop.now_s)
    shop.reader.board.finish(lane, ReadOutcome.READ, shop.now_s)
    free = shop.arena.free_slots
    shop.publish("a", "x")
    shop.books.note_reads(shop.take_reads(), shop.now_s)
    assert shop.arena.free_slots == free
    assert shop.index.counts().places[0].pages == 1


def test_a_settled_want_leases_what_has_arrived_and_no_more(shop: Any) -> None:
    shop.attach("a")
    shop.find_on_tier("xyz")
    prefetch(shop, "a", 1, "xyz", deadline_s=101.0)
    shop.read(pages=2)
    assert shop.index.inspect(shop.key("xyz")).leases == 1
    shop.books.tick(101.0)
    assert shop.index.inspect(shop.key("xyz")).leases == 0
    assert shop.index.inspect(shop.key("xy")).leases == 1
    assert shop.index.counts().leases == 1
    shop.hear("a", Release(1))
    assert shop.index.counts().leases == 0


def test_a_cancelled_want_keeps_what_has_arrived_and_gets_no_more(shop: Any) -> None:
    shop.attach("a")
    shop.find_on_tier("xyz")
    prefetch(shop, "a", 1, "xyz")
    shop.read(pages=1)
    assert outcomes(shop.hear("a", Cancel(1)))[-1:] == [(WantOutcome.CANCELLED, 1)]
    shop.read(pages=9)
    assert shop.told("a") == []
    assert shop.index.inspect(shop.key("x")).leases == 1
    assert shop.index.inspect(shop.key("xyz")).leases == 0
    for again in (Cancel(1), Cancel(7)):
        assert shop.hear("a", again) == []
    shop.hear("a", Release(1))
    assert shop.index.counts().leases == 0


def test_without_room_the_want_ends_before_the_first_page_that_has_none(shop: Any) -> None:
    shop.attach("a")
    shop.find_on_tier("abcdefghij")
    room = int(shop.limits.leased_share * 14)
    prefetch(shop, "a", 1, "abcdefghij")
    reading = int(shop.limits.reading_share * 14)
    assert reading < room
    shop.read(pages=20)
    assert outcomes(shop.told("a")) == [(WantOutcome.NO_ROOM, reading)]
    prefetch(shop, "a", 2, "abcdefghij")
    shop.read(pages=20)
    assert outcomes(shop.told("a")) == [(WantOutcome.NO_ROOM, room)]


def test_pages_that_wants_share_count_once_against_what_one_may_lease(shop: Any) -> None:
    shop.attach("a")
    path = "abcde"
    shop.find_on_tier(path)
    for want in range(shop.limits.max_wants):
        prefetch(shop, "a", want, path)
        shop.read(pages=9)
        assert outcomes(shop.told("a"))[-1:] in ([], [(WantOutcome.COMPLETE, 5)])
    (owner,) = shop.books.owners
    assert owner.leased_pages == 5
    for want in range(shop.limits.max_wants):
        shop.hear("a", Release(want))
    assert owner.leased_pages == 0


def test_one_client_has_so_many_wants_and_no_more(shop: Any) -> None:
    shop.attach("a")
    shop.publish("a", "x")
    for want in range(shop.limits.max_wants):
        assert outcomes(prefetch(shop, "a", want, "x")) == [(WantOutcome.COMPLETE, 1)]
    assert outcomes(prefetch(shop, "a", 99, "x")) == [(WantOutcome.NO_ROOM, 0)]
    shop.hear("a", Release(0))
    assert outcomes(prefetch(shop, "a", 100, "x")) == [(WantOutcome.COMPLETE, 1)]


@pytest.mark.parametrize("repeated", [1, 2])
def test_a_want_ends_once_however_often_it_is_released(shop: Any, repeated: int) -> None:
    shop.attach("a")
    shop.find_on_tier("x")
    prefetch(shop, "a", 1, "x")
    said = [event for _ in range(repeated) for event in shop.hear("a", Release(1))]
    assert outcomes(said) == [(WantOutcome.CANCELLED, 0)]


def test_a_number_used_twice_costs_the_client_its_attachment(shop: Any) -> None:
    shop.attach("a")
    shop.find_on_tier("x")
    prefetch(shop, "a", 1, "x")
    shop.read()
    shop.told("a")
    assert prefetch(shop, "a", 1, "x") == [Lost(shop.epoch)]
    assert shop.index.counts().leases == 1


def test_pages_that_are_read_for_others_are_not_in_the_way_of_who_shares_them(shop: Any) -> None:
    for name in "ab":
        shop.attach(name)
    shop.find_on_tier("xyz")
    prefetch(shop, "a", 1, "xy")
    tier = TierWeather(1, "disk", 1.0, 0.0, 3, 3 * 8)
    shop.books.weather = ReadWeather((tier,), {1: ((110.0, 3 * 8),)})
    known = prefetch(shop, "b", 1, "xyz")[0]
    assert [told.backlog_bytes for told in known.tiers] == [8]
