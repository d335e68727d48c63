"""Who comes and goes, who may write where, and what is published, told by example."""

from __future__ import annotations

from typing import Any

import msgspec

from bana.radix_global.admin_messages import AskStatus
from bana.radix_global.daemon.chores import Gone
from bana.radix_global.daemon.slots import SlotState
from bana.radix_global.messages import (
    Attached,
    Detach,
    Enter,
    Lost,
    Ping,
    Pong,
    Prefetch,
    Publish,
    Published,
    Refused,
    Release,
    Reserve,
    Return,
)
from bana.radix_global.writer.jobs import PageWritten, WriteEnd


def reserve(shop: Any, name: str, pages: int) -> tuple[int, ...]:
    return tuple(shop.hear(name, Reserve(pages))[0].slots)


def test_a_client_is_told_where_the_arena_is(shop: Any) -> None:
    (attached,) = shop.attach("a")
    assert attached == Attached(shop.epoch, "/nowhere", 14, 8)
    assert shop.hear("a", Ping(3)) == [Pong(3, shop.epoch, ())]
    assert "namespace" in shop.said[0]


def test_a_stranger_is_told_so(shop: Any) -> None:
    assert shop.hear("a", Ping(1)) == [Lost(shop.epoch)]


def test_another_protocol_is_refused(shop: Any) -> None:
    (refused,) = shop.attach("a", protocol=99)
    assert isinstance(refused, Refused)
    assert "protocol 99" in refused.reason


def test_larger_pages_than_the_slots_are_refused(shop: Any) -> None:
    shop.attach("a")
    (refused,) = shop.attach("b", page_bytes=9)
    assert "store.slot_bytes" in refused.reason
    assert isinstance(shop.attach("c", page_bytes=4)[0], Attached)


def test_who_is_refused_is_said_once_and_remembered_while_it_asks(shop: Any) -> None:
    shop.attach("a")
    for _ in range(3):
        shop.attach("b", page_bytes=9)
        shop.attach("d", page_bytes=10)
    said = [line for line in shop.said if "is refused" in line]
    assert len(said) == 2
    assert all("set store.slot_bytes to the largest page" in line for line in said)
    assert shop.books.counts["refused_clients"] == 6
    refused = shop.books.refusals.list(shop.now_s + 1.0)
    assert [(each.name, "<= 8" in each.reason) for each in refused] == [("b", True), ("d", True)]
    shop.attach("b", page_bytes=8)
    assert [each.name for each in shop.books.refusals.list(shop.now_s)] == ["d"]
    assert shop.books.refusals.list(shop.now_s + 1e3) == ()
    for number in range(100):
        shop.attach(f"client-{number}", page_bytes=9)
    assert len(shop.books.refusals.list(shop.now_s)) == 64


def test_so_many_clients_and_no_more(shop: Any) -> None:
    for name in "abc":
        shop.attach(name)
    assert "store.max_owners" in shop.attach("d")[0].reason
    assert isinstance(shop.hear("a", Detach())[0], Lost)
    assert isinstance(shop.attach("d")[0], Attached)


def test_a_client_that_was_cut_off_may_end(shop: Any) -> None:
    shop.attach("a")
    reserve(shop, "a", 3)
    shop.books.cut(b"a", "a test")
    assert isinstance(shop.hear("a", Detach())[0], Lost)
    assert len(shop.books.owners) == 0
    assert not shop.books.floor.slots.reserved(b"a".ljust(16))


def test_a_process_that_has_died_already_is_refused(shop: Any) -> None:
    shop.processes.watch = lambda pid, ticks: None
    assert "does not run here" in shop.attach("a")[0].reason
    assert len(shop.books.owners) == 0


def test_a_refusal_is_logged_once(shop: Any) -> None:
    for _ in range(3):
        shop.attach("a", protocol=99)
    assert len(shop.said) == 1


def test_one_connection_is_one_client(shop: Any) -> None:
    shop.attach("a")
    assert isinstance(shop.attach("a", client=b"another client..")[0], Refused)


def test_death_frees_everything(shop: Any) -> None:
    shop.attach("a")
    shop.find_on_tier("xy")
    shop.hear("a", Prefetch(1, shop.keys("xy"), 1.0, 200.0))
    shop.read()
    reserve(shop, "a", 3)
    shop.books.bury(shop.books.owners.descriptors()[0])
    shop.read()
    assert shop.index.counts().leases == 0
    assert shop.books.floor.slots.count(SlotState.RESERVED) == 0
    assert len(shop.books.owners) == 0
    assert shop.told("a") == shop.told("a")
    assert not shop.processes.watched


def test_who_attaches_again_keeps_the_slots_that_it_still_writes_into(shop: Any) -> None:
    shop.attach("a")
    slots = reserve(shop, "a", 3)
    (again,) = shop.attach("a", epoch=shop.epoch, kept=slots[:1], pid=40)
    assert again.kept == slots[:1]
    assert shop.books.floor.slots.reserved(b"a".ljust(16)) == frozenset(slots[:1])


def test_nothing_is_kept_from_another_life_of_the_daemon(shop: Any) -> None:
    shop.attach("a")
    slots = reserve(shop, "a", 3)
    (again,) = shop.attach("a", epoch=shop.epoch + 1, kept=slots, pid=40)
    assert again.kept == ()


def test_another_process_does_not_take_a_client_over(shop: Any) -> None:
    shop.attach("a")
    assert isinstance(shop.attach("a", pid=999)[0], Refused)


def test_who_does_not_take_its_events_keeps_its_slots_and_hears_nothing(shop: Any) -> None:
    shop.attach("a")
    slots = reserve(shop, "a", 2)
    shop.find_on_tier("x")
    shop.hear("a", Prefetch(1, shop.keys("x"), 1.0, 200.0))
    shop.books.cut(b"a", "a test")
    shop.read()
    assert shop.told("a") == []
    assert shop.books.floor.slots.reserved(b"a".ljust(16)) == frozenset(slots)
    assert shop.hear("a", Ping(1)) == [Lost(shop.epoch)]


def test_what_one_may_reserve_is_bounded(shop: Any) -> None:
    for name in "ab":
        shop.attach(name)
    assert len(reserve(shop, "a", 9)) == shop.limits.reserved_pages
    most = int(shop.limits.reserved_share * 14)
    assert len(reserve(shop, "b", 9)) == most - shop.limits.reserved_pages


def test_slots_that_are_returned_are_free_and_in_a_new_generation(shop: Any) -> None:
    shop.attach("a")
    (slot,) = reserve(shop, "a", 1)
    before = shop.arena.generation(slot)
    assert shop.hear("a", Return((slot,))) == []
    assert shop.books.floor.slots.state(slot) is SlotState.FREE
    assert shop.arena.generation(slot) == before + 1
    assert shop.hear("a", Return((slot,))) == [Lost(shop.epoch)]


def test_pages_that_are_known_come_back_to_who_wrote_them_again(shop: Any) -> None:
    shop.attach("a")
    shop.publish("a", "xy")
    slots = reserve(shop, "a", 3)
    (answer,) = shop.hear("a", Publish(b"", shop.keys("xyz"), slots))
    assert answer == Published(1, slots[:2])
    assert shop.books.floor.slots.reserved(b"a".ljust(16)) == frozenset(slots[:2])


def test_nobody_publishes_what_another_reserved(shop: Any) -> None:
    for name in "ab":
        shop.attach(name)
    slots = reserve(shop, "a", 1)
    assert shop.hear("b", Publish(b"", shop.keys("x"), slots)) == [Lost(shop.epoch)]
    assert shop.index.counts().places[0].pages == 0
    assert shop.hear("a", Publish(b"", shop.keys("x"), slots)) == [Published(1, ())]


def test_one_slot_holds_one_page(shop: Any) -> None:
    shop.attach("a")
    (slot,) = reserve(shop, "a", 1)
    assert shop.hear("a", Publish(b"", shop.keys("xy"), (slot, slot))) == [Lost(shop.epoch)]


def test_what_is_published_is_offered_to_the_writer_with_where_it_belongs(shop: Any) -> None:
    shop.attach("a")
    shop.publish("a", "xy")
    first, second = shop.writer.jobs
    assert (first.origin.parent, second.origin.parent) == (b"", shop.key("x"))
    assert first.origin.namespace == shop.books.owners.find_route(b"a").tag
    assert (first.tiers, first.size_bytes) == (0b010, 8)


def test_without_tiers_a_full_index_lets_the_oldest_pages_go(make_shop: Any) -> None:
    shop = make_shop(max_pages=6, has_tiers=False)
    shop.attach("a")
    for path in ("ab", "cd", "ef", "gh"):
        assert shop.publish("a", path)[0].taken == 2
    assert [shop.index.match(shop.keys(path)).pages for path in ("ab", "ef", "gh")] == [0, 2, 2]
    assert shop.books.floor.slots.count(SlotState.HELD) == 6
    assert shop.writer.jobs == []


def test_a_page_stays_in_the_arena_until_it_is_written(shop: Any) -> None:
    shop.attach("a")
    shop.publish("a", "x")
    (job,) = shop.writer.jobs
    assert shop.books.floor.slots.evict(14) == 0
    shop.tiers[1].keys.add(job.key)
    written = PageWritten(job.key, job.slot, 1, WriteEnd.WRITTEN, (), is_last=True)
    shop.books.note_written([written])
    assert shop.books.floor.slots.evict(14) == 1
    assert shop.index.match(shop.keys("x")).places == b"\2"


def test_a_page_that_was_cleared_right_after_it_was_written_is_not_believed_to_be_there(
    shop: Any,
) -> None:
    shop.attach("a")
    shop.publish("a", "x")
    (job,) = shop.writer.jobs
    # What the writer says is heard after what the chores have done since.
    shop.desk.note_news(Gone(1, (job.key,)))
    written = PageWritten(job.key, job.slot, 1, WriteEnd.WRITTEN, (), is_last=True)
    shop.books.note_written([written])
    assert shop.index.match(shop.keys("x")).places == b"\1"


def test_pages_that_are_asked_for_again_go_to_further_tiers(shop: Any) -> None:
    shop.attach("a")
    shop.find_on_tier("x")
    for want in range(2):
        shop.hear("a", Prefetch(want, shop.keys("x"), 1.0, 200.0))
        shop.read()
        shop.hear("a", Release(want))
    shop.books.tick(shop.now_s)
    assert [job.tiers for job in shop.writer.jobs] == [0b100]


def test_a_tier_that_falls_behind_is_passed_over(shop: Any) -> None:
    shop.attach("a")
    for path in ("x", "y", "z", "v"):
        shop.publish("a", path)
    assert [job.tiers for job in shop.writer.jobs] == [0b010] * 3 + [0b100]
    assert shop.books.counts["passed_over_tiers"] == 1


def test_new_weights_have_pages_of_their_own(shop: Any) -> None:
    shop.attach("a")
    shop.hear("a", Enter(msgspec.structs.replace(shop.space, weights_epoch="new")))
    shop.publish("a", "x")
    tags = [job.origin.namespace for job in shop.writer.jobs]
    assert tags == [shop.books.owners.find_route(b"a").tag]
    assert len(set(shop.books.namespaces)) == 2


def test_a_full_index_forgets_what_was_used_longest_ago(make_shop: Any) -> None:
    shop = make_shop(max_pages=6)
    shop.attach("a")
    shop.find_on_tier("abcd")
    # There is room for two of the three at first.
    (published,) = shop.publish("a", "xyz")
    assert published.taken == 3
    assert shop.books.floor.slots.count(SlotState.HELD) == 3
    assert shop.books.counts["forgotten_pages"] >= 1


def test_what_is_for_administrators_is_not_for_clients(shop: Any) -> None:
    shop.attach("a")
    assert shop.hear("a", AskStatus(1)) == [Lost(shop.epoch)]
