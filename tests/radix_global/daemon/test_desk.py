"""What administrators are answered, told by example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bana.radix_global.admin_messages import (
    AskClear,
    AskNamespaces,
    AskPage,
    AskPin,
    AskUnpin,
    AskVerify,
    AskWarm,
    Denied,
    Done,
    Mode,
)
from bana.radix_global.daemon.chores import ChoreDone, Refreshed
from bana.radix_global.messages import Prefetch, Release
from bana.radix_global.stores.store import HeldPage, PageOrigin
from bana.radix_global.writer.jobs import PageWritten, WriteEnd

KEY = "secret"


def ask(shop: Any, question: Any) -> list[Any]:
    shop.desk.ask(b"admin", question, shop.now_s)
    shop.desk.tick(shop.now_s)
    return list(shop.told("admin"))


def answer_chores(shop: Any, parts: dict[int, tuple[dict[str, int], dict[str, int]]]) -> list[Any]:
    for chores in shop.chores:
        while chores.tickets:
            ticket = chores.tickets.pop()
            shop.desk.note_news(ChoreDone(chores.tier, ticket, *parts.get(chores.tier, ({}, {}))))
    return list(shop.told("admin"))


def publish_only(shop: Any, path: str) -> None:
    """A page that no tier takes: nothing holds it in the arena."""
    shop.publish("a", path)
    for job in shop.writer.jobs:
        end = PageWritten(job.key, job.slot, 1, WriteEnd.FULL, (), is_last=True)
        shop.books.note_written([end])
    shop.writer.jobs.clear()


@pytest.mark.parametrize(
    "order",
    [
        AskClear(1, "wrong", Mode.PLAN),
        AskWarm(1, "", Mode.PLAN, b"k" * 16, 1.0),
        AskPin(1, "wrong", Mode.CARRY_OUT, b"k" * 16, 1.0),
        AskUnpin(1, "wrong", Mode.PLAN),
        AskVerify(1, "sécret", Mode.PLAN, 1.0),
    ],
)
def test_orders_need_the_key(shop: Any, order: Any) -> None:
    shop.attach("a")
    (denied,) = ask(shop, order)
    assert isinstance(denied, Denied)
    assert "admin key" in denied.reason


def test_every_place_is_counted_by_namespace(shop: Any) -> None:
    shop.attach("a")
    shop.publish("a", "xy")
    tag = shop.books.owners.find_route(b"a").tag
    assert ask(shop, AskNamespaces(5)) == []
    (found,) = answer_chores(shop, {2: ({str(tag): 3}, {str(tag): 300})})
    rows = [(row.place, row.pages, row.size_bytes, row.name != "") for row in found.rows]
    assert rows == [(2, 3, 300, True), (0, 2, 16, True)]
    assert found.number == 5


def test_one_page_is_described(shop: Any) -> None:
    shop.attach("a")
    shop.find_on_tier("xy")
    shop.hear("a", Prefetch(1, shop.keys("xy"), 1.0, 200.0))
    shop.read(pages=2)
    (facts,) = ask(shop, AskPage(1, shop.key("xy")))
    assert facts.is_known
    assert facts.places == ("arena", "one")
    assert (facts.parent, facts.leases, facts.reads) == (shop.key("x"), 1, 1)
    assert not ask(shop, AskPage(1, b"?" * 16))[0].is_known


def test_clearing_says_first_what_it_is_about(shop: Any) -> None:
    shop.attach("a")
    shop.find_on_tier("xy")
    shop.hear("a", Prefetch(1, shop.keys("x"), 1.0, 200.0))
    shop.read()
    ask(shop, AskClear(1, KEY, Mode.PLAN))
    (plan,) = answer_chores(shop, {1: ({"dropped": 2}, {"dropped": 16})})
    assert plan.pages == {"arena": 1, "one": 2, "two": 0}
    assert plan.size_bytes == 8 + 16
    assert shop.index.counts().places[0].pages == 1


def test_what_is_in_use_is_not_cleared(shop: Any) -> None:
    shop.attach("a")
    shop.find_on_tier("xy")
    shop.hear("a", Prefetch(1, shop.keys("x"), 1.0, 200.0))
    shop.hear("a", Prefetch(2, shop.keys("xy"), 1.0, 150.0))
    shop.read(pages=2)
    shop.books.floor.wants.release(shop.books.owners.find_route(b"a"), 2)
    ask(shop, AskClear(1, KEY, Mode.CARRY_OUT))
    answer_chores(shop, {})
    assert shop.index.match(shop.keys("xy")).places == b"\3\2"


def test_an_order_that_one_tier_has_no_time_for_is_begun_on_none(shop: Any) -> None:
    shop.chores[1].is_full = True
    (told,) = ask(shop, AskClear(1, KEY, Mode.CARRY_OUT))
    assert isinstance(told, Denied)
    assert "tier 2" in told.reason
    assert shop.chores[0].ordered == []


def test_another_namespace_is_left_alone(shop: Any) -> None:
    shop.attach("a")
    shop.find_on_tier("x")
    shop.hear("a", Prefetch(1, shop.keys("x"), 1.0, 101.0))
    shop.read()
    shop.books.floor.wants.release_all(shop.books.owners.find_route(b"a"))
    ask(shop, AskClear(1, KEY, Mode.CARRY_OUT, 12345))
    assert shop.index.counts().places[0].pages == 1
    ask(shop, AskClear(1, KEY, Mode.CARRY_OUT, shop.books.owners.find_route(b"a").tag))
    assert shop.index.counts().places[0].pages == 0


def test_only_what_came_long_ago_is_cleared(shop: Any) -> None:
    shop.attach("a")
    publish_only(shop, "x")
    shop.now_s += 50.0
    shop.find_on_tier("y")
    shop.hear("a", Prefetch(1, shop.keys("y"), 1.0, 200.0))
    shop.read()
    shop.hear("a", Release(1))
    shop.now_s += 9.0
    for age_s, pages in ((60.0, 0), (50.0, 1), (9.0, 1), (8.0, 2)):
        ask(shop, AskClear(1, KEY, Mode.PLAN, None, age_s))
        (plan,) = answer_chores(shop, {})
        assert plan.pages["arena"] == pages
    ask(shop, AskClear(1, KEY, Mode.CARRY_OUT, None, 50.0))
    assert shop.index.match(shop.keys("x")).pages == 0
    assert shop.index.match(shop.keys("y")).places == b"\3"
    assert {chore.older_s for chore in shop.chores[0].ordered} == {60.0, 50.0, 9.0, 8.0}


def test_a_page_that_came_while_others_are_cleared_stays(shop: Any) -> None:
    shop.attach("a")
    publish_only(shop, "x")
    shop.now_s += 10.0
    shop.desk.ask(b"admin", AskClear(1, KEY, Mode.CARRY_OUT, None, 5.0), shop.now_s)
    assert shop.desk.is_busy
    assert shop.books.floor.slots.evict(14) == 1
    shop.publish("a", "z")
    shop.desk.tick(shop.now_s)
    assert shop.index.match(shop.keys("z")).pages == 1


def test_warming_answers_once_the_pages_are_there(shop: Any) -> None:
    shop.attach("a")
    shop.find_on_tier("xy")
    assert ask(shop, AskWarm(1, KEY, Mode.PLAN, shop.keys("xyz"), 9.0))[0].pages == {
        "asked": 3,
        "known": 2,
    }
    assert ask(shop, AskWarm(2, KEY, Mode.CARRY_OUT, shop.keys("xy"), 9.0)) == []
    shop.read(pages=2)
    (done,) = shop.told("admin")
    assert done == Done(2, Mode.CARRY_OUT, {"asked": 2, "in_arena": 2}, 16, "complete")
    shop.desk.tick(shop.now_s)
    assert shop.index.counts().leases == 0


def test_a_pin_keeps_a_prefix_until_it_is_ended(shop: Any) -> None:
    shop.attach("a")
    shop.find_on_tier("xy")
    ask(shop, AskPin(1, KEY, Mode.CARRY_OUT, shop.keys("xy"), 9.0))
    shop.read(pages=2)
    shop.desk.tick(shop.now_s)
    assert shop.desk.pinned_pages == 2
    assert shop.books.floor.slots.evict(14) == 0
    assert isinstance(ask(shop, AskPin(1, KEY, Mode.CARRY_OUT, shop.keys("xy"), 9.0))[-1], Denied)
    (plan,) = ask(shop, AskUnpin(1, KEY, Mode.PLAN))
    assert plan.pages == {"pinned": 2}
    ask(shop, AskUnpin(1, KEY, Mode.CARRY_OUT, shop.key("xy")))
    assert shop.books.floor.slots.evict(14) == 2


def test_a_pin_is_written_down_until_it_is_ended(shop: Any) -> None:
    shop.attach("a")
    shop.find_on_tier("xy")
    ask(shop, AskPin(1, KEY, Mode.CARRY_OUT, shop.keys("xy"), 9.0))
    assert shop.pins.kept == (shop.keys("xy"),)
    ask(shop, AskPin(2, KEY, Mode.CARRY_OUT, shop.keys("q"), 9.0))
    assert shop.pins.kept == (shop.keys("xy"),)
    shop.read(pages=2)
    ask(shop, AskUnpin(3, KEY, Mode.PLAN))
    assert shop.pins.kept == (shop.keys("xy"),)
    ask(shop, AskUnpin(3, KEY, Mode.CARRY_OUT, shop.key("xy")))
    assert shop.pins.kept == ()


def find_nothing_more(shop: Any) -> None:
    for tier in (1, 2):
        shop.desk.note_news(Refreshed(tier, (), (), is_whole=True))


def test_a_pin_of_an_earlier_life_is_made_again_once_its_pages_are_found(
    make_shop: Callable[..., Any],
) -> None:
    old = make_shop(max_pages=100)
    kept = (old.keys("xy"), old.keys("pq"), old.keys("z"))
    shop = make_shop(max_pages=100, pins=kept)
    shop.desk.tick(shop.now_s)
    shop.find_on_tier("xy")
    assert shop.desk.waiting_pins == 3
    # There is no arena yet, then the tiers are not looked through yet.
    shop.attach("a")
    for _ in range(3):
        shop.desk.tick(shop.now_s)
    shop.read(pages=2)
    assert (shop.desk.pinned_pages, shop.desk.waiting_pins) == (2, 2)
    shop.find_on_tier("p")
    for _ in range(3):
        shop.desk.tick(shop.now_s)
    assert shop.desk.waiting_pins == 2
    assert shop.pins.kept == kept
    find_nothing_more(shop)
    assert shop.desk.is_busy
    for _ in range(3):
        shop.desk.tick(shop.now_s)
    shop.read()
    shop.desk.tick(shop.now_s)
    assert (shop.desk.pinned_pages, shop.desk.waiting_pins) == (3, 0)
    assert not shop.desk.is_busy
    assert set(shop.pins.kept) == {shop.keys("xy"), shop.keys("pq")}
    said = [line for line in shop.said if "pin" in line]
    assert said[0] == "3 pins of an earlier life wait for their pages"
    assert said[1].endswith("made again: 2 of 2 pages")
    assert f"{shop.key('z').hex()} is not made again: none of its pages" in said[2]
    assert said[3].endswith("made again: 1 of 2 pages, the next one is missing")
    assert shop.books.floor.slots.evict(14) == 0


def test_a_pin_that_waits_can_be_ended_or_made_by_hand(make_shop: Callable[..., Any]) -> None:
    old = make_shop(max_pages=100)
    shop = make_shop(max_pages=100, pins=(old.keys("xy"), old.keys("p"), old.keys("z")))
    (plan,) = ask(shop, AskUnpin(1, KEY, Mode.PLAN))
    assert (plan.pages, plan.remark) == ({"pinned": 0}, "3 pins")
    ask(shop, AskUnpin(2, KEY, Mode.CARRY_OUT, shop.key("p")))
    assert set(shop.pins.kept) == {shop.keys("xy"), shop.keys("z")}
    shop.attach("a")
    shop.find_on_tier("xy")
    ask(shop, AskPin(3, KEY, Mode.CARRY_OUT, shop.keys("xy"), 9.0))
    assert shop.desk.waiting_pins == 1
    ask(shop, AskUnpin(4, KEY, Mode.CARRY_OUT))
    assert (shop.desk.waiting_pins, shop.desk.pinned_pages, shop.pins.kept) == (0, 0, ())


def test_pins_are_made_again_one_by_one_and_in_spite_of_one_that_cannot(
    make_shop: Callable[..., Any],
) -> None:
    old = make_shop(max_pages=100)
    most = int(old.limits.pinned_share * 14)
    shop = make_shop(max_pages=100, pins=(old.keys("abcdefgh"[: most + 1]), old.keys("x")))
    shop.attach("a")
    shop.find_on_tier("abcdefgh"[: most + 1])
    shop.find_on_tier("x")
    for _ in range(4):
        shop.desk.tick(shop.now_s)
    shop.read()
    assert (shop.desk.pinned_pages, shop.desk.waiting_pins) == (1, 0)
    assert any(f"allowed: {most}" in line for line in shop.said)
    assert shop.pins.kept == (shop.keys("x"),)


def test_so_much_is_pinned_and_no_more(shop: Any) -> None:
    shop.attach("a")
    most = int(shop.limits.pinned_share * 14)
    path = "abcdefgh"[: most + 1]
    shop.find_on_tier(path)
    (denied,) = ask(shop, AskPin(1, KEY, Mode.CARRY_OUT, shop.keys(path), 9.0))
    assert isinstance(denied, Denied)


def test_a_pin_of_which_nothing_comes_is_none(shop: Any) -> None:
    shop.attach("a")
    (done,) = ask(shop, AskPin(1, KEY, Mode.CARRY_OUT, shop.keys("q"), 9.0))
    assert done.remark == "missing"
    assert ask(shop, AskUnpin(1, KEY, Mode.PLAN))[0].remark == "0 pins"


def test_before_there_is_an_arena_nothing_can_be_warmed(shop: Any) -> None:
    (denied,) = ask(shop, AskWarm(1, KEY, Mode.PLAN, b"k" * 16, 1.0))
    assert "no arena" in denied.reason


def test_verifying_adds_up_what_all_tiers_say(shop: Any) -> None:
    ask(shop, AskVerify(1, KEY, Mode.CARRY_OUT, 1e6))
    parts = {1: ({"read": 5}, {"read": 50}), 2: ({"read": 2, "corrupt": 1}, {"read": 20})}
    (done,) = answer_chores(shop, parts)
    assert (done.pages, done.size_bytes) == ({"read": 7, "corrupt": 1}, 70)


def test_it_recovers_until_every_tier_was_looked_through(shop: Any) -> None:
    for tier in (1, 2):
        assert shop.desk.is_recovering
        shop.desk.note_news(Refreshed(tier, (), (), is_whole=True))
    assert not shop.desk.is_recovering


def test_what_is_told_lost_and_is_there_again_stays_known(shop: Any) -> None:
    shop.find_on_tier("x")
    shop.desk.note_news(Refreshed(1, (), (shop.key("x"),), is_whole=True))
    assert shop.index.match(shop.keys("x")).pages == 1
    shop.tiers[1].keys.clear()
    shop.desk.note_news(Refreshed(1, (), (shop.key("x"),), is_whole=True))
    assert shop.index.match(shop.keys("x")).pages == 0


def test_what_is_told_found_and_is_gone_again_stays_unknown(shop: Any) -> None:
    pages = tuple(HeldPage(shop.key(name), PageOrigin(b"", 1), 8) for name in "xy")
    shop.tiers[1].keys.add(shop.key("y"))
    shop.desk.note_news(Refreshed(1, pages, (), is_whole=True))
    assert shop.index.match(shop.keys("x")).pages == 0
    assert shop.index.match(shop.keys("y")).pages == 1
