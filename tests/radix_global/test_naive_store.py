"""The store for tests of an engine keeps the promises of a link."""

from __future__ import annotations

from bana.radix_global.link import LinkState
from bana.radix_global.messages import WantOutcome
from bana.radix_global.naive_store import NaiveStore


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def keys(count: int) -> bytes:
    return b"".join(map(key, range(count)))


def build() -> tuple[NaiveStore, list[int]]:
    wakes: list[int] = []
    store = NaiveStore(4, 8, lambda: wakes.append(1))
    store.tier_pages |= {key(n): bytes([n] * 8) for n in range(3)}
    return store, wakes


def test_pages_arrive_when_they_are_delivered() -> None:
    store, wakes = build()
    want = store.prefetch(keys(4), 1.0, 2.0)
    assert (want.known, want.outcome, want.arrived_pages) == (b"\2\2\2", None, 0)
    store.deliver(want, 2)
    assert (want.outcome, want.pages().origins, len(wakes)) == (None, b"\1\1", 1)
    store.deliver(want, 9)
    assert want.outcome is WantOutcome.MISSING
    slots = want.pages().slots
    assert [bytes(store.view(slot) or b"") for slot in slots] == [bytes([n] * 8) for n in range(3)]
    assert all(store.is_valid(slot) for slot in slots)
    assert store.prefetch(keys(3), 1.0, 2.0).outcome is WantOutcome.COMPLETE


def test_a_page_that_was_evicted_is_noticed_after_the_copy() -> None:
    store, _ = build()
    want = store.prefetch(keys(1), 1.0, 2.0)
    store.deliver(want, 1)
    (slot,) = want.pages().slots
    store.evict(key(0))
    assert not store.is_valid(slot)


def test_what_is_published_is_there_once() -> None:
    store, _ = build()
    first, second = store.take_slots(2) or ()
    store.publish(b"", key(9), (first,))
    store.publish(b"", key(9), (second,))
    assert store.published == [(b"", key(9))]
    assert store.counts["duplicate_pages"] == 1
    assert store.prefetch(key(9), 1.0, 2.0).pages().slots == (first,)
    assert len(store.take_slots(3) or ()) == 3
    assert store.take_slots(1) is None


def test_slots_that_are_given_back_can_be_taken_again() -> None:
    store, _ = build()
    taken = store.take_slots(4)
    store.give_back(taken or ())
    assert store.take_slots(4) is not None


def test_a_store_that_is_lost_takes_everything_but_the_tier() -> None:
    store, wakes = build()
    want = store.prefetch(keys(2), 1.0, 2.0)
    store.deliver(want, 1)
    (slot,) = want.pages().slots
    taken = store.take_slots(1)
    store.lose()
    assert (want.outcome, want.pages().pages) == (WantOutcome.LOST, 0)
    assert store.state is LinkState.AWAY
    assert store.view(slot) is None
    assert not store.is_valid(slot)
    assert store.take_slots(1) is None
    assert store.prefetch(keys(1), 1.0, 2.0).outcome is WantOutcome.LOST
    assert len(wakes) == 2
    store.come_back()
    store.publish(b"", key(5), taken or ())
    assert store.published == []
    assert store.prefetch(keys(1), 1.0, 2.0).known == b"\2"


def test_a_released_want_gets_nothing_more() -> None:
    store, _ = build()
    want = store.prefetch(keys(2), 1.0, 2.0)
    store.release(want)
    store.deliver(want, 2)
    assert (want.outcome, want.arrived_pages) == (WantOutcome.CANCELLED, 0)
