"""Pages that somebody is computing are waited for, as long as they may still come."""

from __future__ import annotations

from typing import Any

import pytest

from bana.radix_global.daemon.announcements import (
    MAX_ANNOUNCED_PAGES,
    MAX_ANNOUNCEMENTS,
    AnnouncementBook,
)
from bana.radix_global.messages import (
    Announce,
    Arrived,
    Detach,
    Enter,
    Known,
    Prefetch,
    Release,
    Settled,
    WantOutcome,
    Withdraw,
)
from bana.radix_global.writer.jobs import PageWritten, WriteEnd

SOON = 200.0


def want(shop: Any, path: str, await_until_s: float = 150.0, number: int = 1) -> list[Any]:
    """What `d`, who decodes, hears at once."""
    message = Prefetch(number, shop.keys(path), 110.0, SOON, await_until_s)
    return list(shop.hear("d", message))


def announce(shop: Any, path: str, number: int = 1) -> None:
    shop.hear("p", Announce(number, shop.keys(path)))


@pytest.fixture
def pair(shop: Any) -> Any:
    """A shop with `p`, who computes prompts, and `d`, who waits for them."""
    shop.attach("p")
    shop.attach("d")
    return shop


def end_writes(shop: Any) -> None:
    """No tier takes what it was to be given."""
    jobs, shop.writer.jobs = shop.writer.jobs, []
    ends = [PageWritten(j.key, j.slot, 1, WriteEnd.FAILED, (), is_last=True) for j in jobs]
    shop.books.note_written(ends)


def ends(events: list[Any]) -> list[tuple[str, int]]:
    return [(event.outcome, event.pages) for event in events if isinstance(event, Settled)]


def arrived(events: list[Any]) -> list[tuple[int, int]]:
    return [(e.first, len(e.slots)) for e in events if isinstance(e, Arrived)]


def test_pages_are_handed_over_as_they_are_published(pair: Any) -> None:
    announce(pair, "abcd")
    assert want(pair, "abcd") == [Known(1, b"", (), 4)]
    pair.publish("p", "ab")
    events = pair.told("d")
    assert [e for e in events if isinstance(e, Known)] == [Known(1, b"\1\1", (), 2)]
    assert arrived(events) == [(0, 2)]
    pair.publish("p", "abcd", after="ab")
    events = pair.told("d")
    assert arrived(events) == [(2, 2)]
    assert ends(events) == [(WantOutcome.COMPLETE, 4)]


def test_what_is_known_before_is_had_at_once(pair: Any) -> None:
    pair.publish("p", "a")
    announce(pair, "abc")
    events = want(pair, "abcx")
    assert events[0] == Known(1, b"\1", (), 3)
    assert arrived(events) == [(0, 1)]
    pair.publish("p", "abc", after="a")
    # Nobody announces the last page.
    assert pair.told("d")[-1] != Settled(1, WantOutcome.MISSING, 3)
    pair.books.tick(150.0)
    assert ends(pair.told("d")) == [(WantOutcome.MISSING, 3)]


def test_who_is_early_is_given_time(pair: Any) -> None:
    events = want(pair, "ab", await_until_s=105.0)
    assert events == [Known(1, b"", (), 2)]
    assert pair.books.next_deadline_s() == 105.0
    announce(pair, "ab")
    pair.books.tick(106.0)
    assert pair.told("d") == []
    pair.publish("p", "ab")
    assert ends(pair.told("d")) == [(WantOutcome.COMPLETE, 2)]


def test_nobody_waits_for_ever_for_an_announcement(pair: Any) -> None:
    want(pair, "ab", await_until_s=105.0)
    pair.books.tick(104.9)
    assert pair.told("d") == []
    pair.books.tick(105.0)
    assert ends(pair.told("d")) == [(WantOutcome.MISSING, 0)]
    assert pair.books.next_deadline_s() is None


@pytest.mark.parametrize("how", ["withdraw", "detach", "death", "weights", "again"])
def test_an_announcement_that_ends_ends_the_wait(pair: Any, how: str) -> None:
    announce(pair, "abc")
    want(pair, "abc", await_until_s=150.0)
    pair.publish("p", "a")
    match how:
        case "withdraw":
            pair.hear("p", Withdraw(1))
        case "detach":
            pair.hear("p", Detach())
        case "death":
            pair.books.bury(next(o.pid for o in pair.books.owners if o.label == "p"))
        case "weights":
            pair.hear("p", Enter(pair.space))
        case "again":
            pid = next(o.pid for o in pair.books.owners if o.label == "p")
            pair.attach("p", pid=pid)
    events = pair.told("d")
    assert arrived(events) == [(0, 1)]
    assert ends(events) == [(WantOutcome.MISSING, 1)]
    # Whoever asks now is told at once that it is over.
    assert ends(want(pair, "abc", await_until_s=150.0, number=2)) == [(WantOutcome.MISSING, 1)]


def test_who_is_promised_nothing_does_not_wait(pair: Any) -> None:
    """Least of all for what it computes itself."""
    announce(pair, "ab")
    assert ends(want(pair, "ab", await_until_s=0.0)) == [(WantOutcome.MISSING, 0)]
    own = pair.hear("p", Prefetch(1, pair.keys("ab"), 110.0, SOON))
    assert ends(own) == [(WantOutcome.MISSING, 0)]


def test_two_who_compute_the_same_count_apart(pair: Any) -> None:
    pair.attach("q")
    announce(pair, "ab")
    pair.hear("q", Announce(1, pair.keys("ab")))
    want(pair, "ab")
    pair.hear("p", Withdraw(1))
    assert pair.told("d") == []
    pair.hear("q", Withdraw(1))
    assert ends(pair.told("d")) == [(WantOutcome.MISSING, 0)]


def test_a_deadline_and_a_release_end_a_wait_for_others(pair: Any) -> None:
    announce(pair, "ab")
    want(pair, "ab")
    pair.books.tick(SOON)
    assert ends(pair.told("d")) == [(WantOutcome.LATE, 0)]
    want(pair, "ab", number=2)
    assert ends(pair.hear("d", Release(2))) == [(WantOutcome.CANCELLED, 0)]
    pair.publish("p", "ab")
    assert pair.told("d") == []


def test_pages_that_turn_up_on_a_tier_are_read(pair: Any) -> None:
    """Another host has written them."""
    want(pair, "ab", await_until_s=150.0)
    pair.find_on_tier("ab")
    assert [e for e in pair.told("d") if isinstance(e, Known)] == [Known(1, b"\2\2", (), 0)]
    pair.read(pages=2)
    assert ends(pair.told("d")) == [(WantOutcome.COMPLETE, 2)]


def test_a_page_that_its_tier_loses_while_it_is_read_costs_no_page_behind_it_its_lease(
    pair: Any,
) -> None:
    # The first page is on a tier alone, and read from there; the next ones are in the arena alone.
    pair.find_on_tier("a")
    pair.publish("p", "abc", after="a")
    end_writes(pair)
    announce(pair, "abcd")
    want(pair, "abcd")
    pair.tiers[1].keys.clear()
    pair.books.tiers.note_lost(1, [pair.key("a")])
    pair.publish("p", "abcd", after="abc")
    end_writes(pair)
    pair.books.floor.slots.evict(100)
    assert [pair.index.inspect(pair.key(path)).places for path in ("ab", "abc")] == [1, 1]
    # The read began before: its page is there, and nothing is awaited behind the others.
    pair.read()
    events = pair.told("d")
    assert arrived(events) == [(0, 3)]
    assert ends(events) == [(WantOutcome.MISSING, 3)]


def test_what_follows_pages_without_room_is_not_awaited(pair: Any) -> None:
    announce(pair, "abcdefghij")
    want(pair, "abcdefghij")
    most = int(pair.limits.leased_share * 14)
    before = ""
    for end in range(3, 10, 3):
        pair.publish("p", "abcdefghij"[:end], after=before)
        before = "abcdefghij"[:end]
    assert ends(pair.told("d")) == [(WantOutcome.NO_ROOM, most)]


def test_who_asks_and_releases_leaves_nothing_behind(pair: Any) -> None:
    """However far away the time is until which it would have waited."""
    for number in range(1, 500):
        want(pair, "ab", await_until_s=1e9, number=number)
        pair.hear("d", Release(number))
    assert pair.books.next_deadline_s() is None


def test_announcements_are_bounded() -> None:
    book, owner = AnnouncementBook(), object()
    keys = [number.to_bytes(16, "big") for number in range(MAX_ANNOUNCED_PAGES)]
    assert book.add(owner, 1, keys)  # type: ignore[arg-type]
    assert not book.add(owner, 2, keys[:1])  # type: ignore[arg-type]
    assert not book.is_coming(b"x" * 16)
    ended = book.end(owner, 1)  # type: ignore[arg-type]
    assert len(ended) == len(keys)
    assert not book.has_ended(keys[0])
    assert book.has_ended(keys[-1])
    for number in range(MAX_ANNOUNCEMENTS):
        assert book.add(owner, 10 + number, keys[:1])  # type: ignore[arg-type]
    assert not book.add(owner, 5, keys[:1])  # type: ignore[arg-type]
    assert len(book) == MAX_ANNOUNCEMENTS
    assert book.end_all(owner) == keys[:1]  # type: ignore[arg-type]
    assert len(book) == 0


def test_who_waits_for_more_is_told_that_nobody_computes_the_rest(pair: Any) -> None:
    pair.find_on_tier("ab")
    announce(pair, "abcd")
    assert want(pair, "abcd")[0] == Known(1, b"\2\2", (), 2)
    pair.hear("p", Withdraw(1))
    # Its own pages are still being read.
    assert pair.told("d") == [Known(1, b"\2\2", (), 0)]
    pair.read(pages=2)
    assert ends(pair.told("d")) == [(WantOutcome.MISSING, 2)]
