"""What a client believes, told by example: wants, slots and messages."""

from __future__ import annotations

from typing import Any

import pytest

from bana.radix_global.client_book import ClientBook
from bana.radix_global.client_settings import ClientSettings
from bana.radix_global.keys import Namespace
from bana.radix_global.messages import (
    Announce,
    Arrived,
    Attached,
    Cancel,
    Enter,
    Known,
    Ping,
    Pong,
    Prefetch,
    Publish,
    Published,
    Release,
    Reserve,
    Reserved,
    Return,
    Settled,
    TierWeather,
    WantOutcome,
    Withdraw,
)
from bana.slo.errors import ConfigError

from .spaces import SPACE

KEY = b"0123456789abcdef"
SETTINGS: dict[str, Any] = {
    "endpoint": "ipc:///nowhere",
    "name": "i",
    "namespace": SPACE,
    "page_bytes": 8,
    "pid": 1,
    "start_ticks": 2,
    "stock_slots": 4,
    "max_wants": 2,
    "max_unsent": 5,
}


def build(epoch: int = 7, **changes: Any) -> ClientBook:
    book = ClientBook(ClientSettings(**{**SETTINGS, **changes}), KEY)
    if epoch:
        book.note_attached(Attached(epoch, "/arena", 9, 8))
    return book


def stocked(slots: int = 4) -> ClientBook:
    book = build()
    book.take_unsent(0.0)
    book.note_event(Reserved(tuple(range(slots)), (5,) * slots))
    return book


def sent(book: ClientBook, *kinds: type) -> list[Any]:
    requests = book.take_unsent(0.0)
    assert requests is not None
    return [request for request in requests if isinstance(request, kinds)]


def test_a_want_fills_up_and_is_settled() -> None:
    book = build()
    want = book.prefetch(KEY * 3, 1.0, 2.0)
    assert sent(book, Prefetch) == [Prefetch(want.number, KEY * 3, 1.0, 2.0)]
    assert (want.known, want.outcome, want.pages().pages) == (None, None, 0)
    assert book.note_event(Known(want.number, b"\1\2"))
    assert book.note_event(Arrived(want.number, 0, (3,), (8,), b"\0"))
    assert book.note_event(Arrived(want.number, 1, (4,), (9,), b"\2"))
    assert book.note_event(Settled(want.number, WantOutcome.MISSING, 2))
    pages = want.pages()
    assert [(slot.number, slot.generation, slot.epoch) for slot in pages.slots] == [
        (3, 8, 7),
        (4, 9, 7),
    ]
    assert (pages.origins, want.known, want.outcome) == (b"\0\2", b"\1\2", "missing")


def test_what_others_compute_becomes_known_on_the_way() -> None:
    book = build()
    want = book.prefetch(KEY * 3, 1.0, 2.0, 1.5)
    assert sent(book, Prefetch) == [Prefetch(want.number, KEY * 3, 1.0, 2.0, 1.5)]
    book.note_event(Known(want.number, b"\1", coming=2))
    assert (want.known, want.coming) == (b"\1", 2)
    book.note_event(Known(want.number, b"\1\1\1"))
    assert (want.known, want.coming) == (b"\1\1\1", 0)


def test_what_is_announced_is_withdrawn_by_its_number() -> None:
    book = build()
    first, second = book.announce(KEY * 2), book.announce(KEY)
    book.withdraw(first)
    said = [Announce(first, KEY * 2), Announce(second, KEY), Withdraw(first)]
    assert sent(book, Announce, Withdraw) == said
    book.announce(b"")
    book.announce(KEY[:3])
    away = build(epoch=0)
    away.withdraw(away.announce(KEY))
    assert sent(book, Announce, Withdraw) == sent(away, Announce, Withdraw) == []


def test_pages_that_do_not_follow_are_not_believed() -> None:
    book = build()
    want = book.prefetch(KEY * 3, 1.0, 2.0)
    book.note_event(Arrived(want.number, 1, (3,), (8,), b"\0"))
    assert want.pages().pages == 0
    assert book.counts["strange_events"] == 1


def test_without_a_daemon_a_want_is_lost_at_once() -> None:
    book = build(epoch=0)
    assert book.prefetch(KEY, 1.0, 2.0).outcome is WantOutcome.LOST
    assert sent(book, Prefetch) == []


@pytest.mark.parametrize(
    ("keys", "due_s", "deadline_s"),
    [(b"", 1.0, 2.0), (KEY[:5], 1.0, 2.0), (KEY, float("nan"), 2.0), (KEY, 1.0, -1.0)],
)
def test_what_cannot_be_asked_is_lost_and_counted(
    keys: bytes, due_s: float, deadline_s: float
) -> None:
    book = build()
    assert book.prefetch(keys, due_s, deadline_s).outcome is WantOutcome.LOST
    assert book.counts["unsound_prefetches"] == 1


def test_so_many_wants_and_no_more() -> None:
    book = build()
    held = [book.prefetch(KEY, 1.0, 2.0) for _ in range(3)]
    assert [want.outcome for want in held] == [None, None, WantOutcome.LOST]
    book.release(held[0])
    assert book.prefetch(KEY, 1.0, 2.0).outcome is None


def test_a_want_is_released_once() -> None:
    book = build()
    want = book.prefetch(KEY, 1.0, 2.0)
    book.release(want)
    book.release(want)
    assert sent(book, Release) == [Release(want.number)]
    assert want.outcome is WantOutcome.CANCELLED
    assert not book.note_event(Known(want.number, b"\1"))


def test_what_comes_of_a_cancelled_want_is_neither_used_nor_strange() -> None:
    book = build()
    want = book.prefetch(KEY * 2, 1.0, 2.0)
    book.note_event(Arrived(want.number, 0, (3,), (8,), b"\0"))
    book.cancel(want)
    book.cancel(want)
    assert sent(book, Cancel) == [Cancel(want.number)]
    book.note_event(Arrived(want.number, 1, (4,), (8,), b"\0"))
    book.note_event(Settled(want.number, WantOutcome.CANCELLED, 2))
    assert (want.arrived_pages, want.outcome) == (1, WantOutcome.CANCELLED)
    assert book.counts["strange_events"] == 0
    book.release(want)
    assert sent(book, Release) == [Release(want.number)]


def test_losing_the_daemon_takes_everything_but_what_is_being_written() -> None:
    book = stocked()
    want = book.prefetch(KEY, 1.0, 2.0)
    book.note_event(Arrived(want.number, 0, (3,), (8,), b"\0"))
    taken = book.take_slots(2)
    assert book.lose()
    assert want.outcome is WantOutcome.LOST
    assert want.pages().pages == 0
    assert book.take_slots(1) is None
    assert taken is not None
    hello = book.describe_self()
    assert (hello.epoch, hello.kept) == (7, tuple(slot.number for slot in taken))


def test_slots_that_the_daemon_kept_are_published_after_it_was_lost() -> None:
    book = stocked()
    taken = book.take_slots(2)
    assert taken is not None
    book.lose()
    book.note_attached(Attached(7, "/arena", 9, 8, (taken[0].number,)))
    book.publish(b"", KEY, taken[:1])
    book.publish(b"", KEY, taken[1:])
    assert sent(book, Publish) == [Publish(b"", KEY, (taken[0].number,))]
    assert book.counts["dropped_pages"] == 1


def test_slots_that_come_back_while_nobody_listens_are_returned_then() -> None:
    book = stocked()
    taken = book.take_slots(2)
    assert taken is not None
    book.lose()
    hello = book.describe_self()
    book.give_back(taken[:1])
    book.note_attached(Attached(7, "/arena", 9, 8, hello.kept))
    assert sent(book, Return) == [Return((taken[0].number,))]
    book.publish(b"", KEY, taken[1:])
    assert sent(book, Publish) == [Publish(b"", KEY, (taken[1].number,))]


def test_slots_of_an_earlier_life_are_never_published() -> None:
    book = stocked()
    taken = book.take_slots(1)
    assert taken is not None
    book.lose()
    book.note_attached(Attached(8, "/arena", 9, 8, (taken[0].number,)))
    book.publish(b"", KEY, taken)
    assert sent(book, Publish) == []


def test_pages_that_were_known_bring_their_slots_back() -> None:
    book = stocked()
    taken = book.take_slots(3)
    assert taken is not None
    book.publish(b"", KEY * 3, taken)
    book.note_event(Published(1, (taken[1].number, taken[2].number)))
    assert {slot.number for slot in book.take_slots(3) or ()} == {3, 1, 2}


@pytest.mark.parametrize("pages", [0, 1, 3])
def test_a_publication_of_other_length_is_dropped_and_its_slots_kept(pages: int) -> None:
    book = stocked()
    taken = book.take_slots(2)
    assert taken is not None
    book.publish(b"", KEY * pages, taken)
    assert sent(book, Publish) == []
    assert len(book.take_slots(4) or ()) == 4


def test_a_slot_is_published_once() -> None:
    book = stocked()
    taken = book.take_slots(1)
    assert taken is not None
    book.publish(b"", KEY * 2, taken * 2)
    book.publish(b"", KEY, taken)
    assert sent(book, Publish) == []


def test_the_stock_is_filled_up_when_it_runs_low() -> None:
    book = build()
    assert sent(book, Reserve) == [Reserve(4)]
    assert sent(book, Reserve) == []
    book.note_event(Reserved((), ()))
    assert book.take_unsent(0.01) == []
    assert book.next_wake_s() == pytest.approx(0.05)
    assert [type(request) for request in book.take_unsent(0.05) or ()] == [Reserve]


def test_more_slots_than_are_needed_go_back() -> None:
    book = stocked(slots=9)
    taken = book.take_slots(1)
    assert taken is not None
    book.note_event(Reserved((20,), (1,)))
    book.give_back(taken)
    assert len(sent(book, Return)[0].slots) == 2


def test_it_asks_for_a_sign_of_life_now_and_then() -> None:
    book = build()
    first = [r for r in book.take_unsent(1.0) or () if isinstance(r, Ping)]
    assert [r for r in book.take_unsent(1.1) or () if isinstance(r, Ping)] == []
    assert len(first) == len([r for r in book.take_unsent(1.5) or () if isinstance(r, Ping)]) == 1
    book.note_event(Pong(1, 7, ()))
    assert book.tiers == ()


def test_an_answer_tells_how_fast_tiers_are_and_keeps_what_is_told_of_their_queues() -> None:
    book = build()
    want = book.prefetch(b"k" * 16, 1.0, 9.0)
    slow = TierWeather(1, "disk", 10.0, 0.5, 7, 700)
    book.note_event(Pong(1, 7, (slow,)))
    book.note_event(Known(want.number, b"\2", (TierWeather(1, "disk", 90.0, 0.1, 0, 0),)))
    assert book.tiers == (TierWeather(1, "disk", 90.0, 0.1, 7, 700),)
    # A later answer that says nothing of them changes nothing.
    book.note_event(Known(want.number, b"\2", ()))
    assert book.tiers == (TierWeather(1, "disk", 90.0, 0.1, 7, 700),)


def test_too_much_that_is_not_sent_is_the_end_of_the_connection() -> None:
    book = build(max_unsent=2)
    for _ in range(3):
        book.enter(SPACE)
    assert book.take_unsent(0.0) is None


def test_a_new_namespace_is_told_and_kept_for_the_next_attachment() -> None:
    book = build(epoch=0)
    other = Namespace(**{**_fields(SPACE), "weights_epoch": "new"})
    book.enter(other)
    assert sent(book, Enter) == []
    assert book.describe_self().namespace == other
    book.enter(SPACE)
    book.note_attached(Attached(7, "/arena", 9, 8))
    book.enter(other)
    assert sent(book, Enter) == [Enter(SPACE), Enter(other)]


@pytest.mark.parametrize(
    "changes",
    [
        {"stock_slots": 0},
        {"max_wants": 0},
        {"attach_timeout_s": 0.0},
        {"silent_after_s": 0.5},
        {"backoff_max_s": float("nan")},
    ],
)
def test_unusable_settings_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ClientSettings(**{**SETTINGS, **changes})


def _fields(space: Namespace) -> dict[str, Any]:
    return {name: getattr(space, name) for name in space.__struct_fields__}
