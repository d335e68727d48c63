"""Where pages are: the map against plain sets, and what a full place gives up."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bana.eval.simulator.prefixes import ROOT, PrefixPlan
from bana.eval.simulator.store.page_map import ARENA, IN_ARENA, PageMap

TIER = 1
# Two prompts: four shared pages, and four more of each.
PLAN = PrefixPlan(
    page_tokens=4,
    parents=(ROOT, ROOT, 1, 1),
    pages=(0, 4, 4, 4),
    shared=(True, True, False, False),
    paths=((1, 2), (1, 3)),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "lease", "unlease", "touch"]),
        st.sampled_from([ARENA, TIER]),
        st.integers(0, 1),
        st.integers(0, 8),
    ),
    max_size=30,
)


def open_map(arena: int | None = None, tier: int | None = None) -> PageMap:
    return PageMap(PLAN, (arena, tier))


def held(pages: PageMap, place: int) -> set[int]:
    return set(np.flatnonzero(pages.masks & (1 << place)).tolist())


def test_prompts_share_the_pages_that_their_paths_do() -> None:
    pages = open_map()
    one, other = (pages.list_pages(path) for path in PLAN.paths)
    assert one.size == other.size == 8
    assert one[:4].tolist() == other[:4].tolist()
    assert not set(one[4:].tolist()) & set(other[4:].tolist())
    assert pages.list_pages(()).size == 0


def test_what_was_used_longest_ago_goes_first_and_a_prefix_from_its_end() -> None:
    pages = open_map(arena=8)
    one, other = (pages.list_pages(path) for path in PLAN.paths)
    pages.touch(one)
    pages.put(ARENA, one)
    pages.touch(other)
    assert pages.put(ARENA, other).tolist() == other.tolist()
    assert held(pages, ARENA) == set(other.tolist())
    # The shared half was used last with the other prompt; of that the last pages go.
    pages.touch(one)
    pages.put(ARENA, one[:6])
    assert held(pages, ARENA) == {*one[:6].tolist(), *other[4:6].tolist()}


def test_leased_pages_stay_and_those_on_their_way_keep_their_slots() -> None:
    pages = open_map(arena=8)
    one, other = (pages.list_pages(path) for path in PLAN.paths)
    pages.put(TIER, one)
    pages.put(ARENA, one[:2])
    pages.lease(one[:6])
    assert pages.count_to_read(TIER, one[:6]) == 4
    # Two of eight slots are nobody's.
    assert pages.put(ARENA, other[4:]).tolist() == other[4:6].tolist()
    assert pages.count_leasable(other) == 6
    assert pages.put(ARENA, one[2:6]).size == 4
    pages.unlease(one[:6])
    assert pages.put(ARENA, other[6:]).size == 2
    assert pages.count(ARENA) == 8


def test_what_two_tiers_have_is_half_of_each_ones_work() -> None:
    pages = PageMap(PLAN, (None, None, None))
    ids = pages.list_pages(PLAN.paths[0])
    pages.put(TIER, ids)
    pages.put(TIER + 1, ids[:4])
    assert [pages.count_to_read(tier, ids) for tier in (TIER, TIER + 1)] == [6.0, 2.0]


@given(STEPS, st.none() | st.integers(1, 9), st.none() | st.integers(1, 9))
def test_no_place_holds_more_than_fits_and_nobody_loses_what_is_leased(
    steps: list[tuple[Any, ...]], arena: int | None, tier: int | None
) -> None:
    pages = open_map(arena, tier)
    leased: list[Any] = []
    for step, place, prompt, count in steps:
        ids = pages.list_pages(PLAN.paths[prompt])[:count]
        kept = {p for some in leased for p in some.tolist()}
        before = {place: held(pages, place) & kept for place in (ARENA, TIER)}
        if step == "put":
            there = pages.put(place, ids)
            assert set(there.tolist()) == set(ids.tolist()) & held(pages, place)
            if place == ARENA:
                assert set(ids.tolist()) & kept <= held(pages, ARENA)
        elif step == "touch":
            pages.touch(ids)
        elif step == "lease":
            ids = ids[: pages.count_leasable(ids)]
            pages.lease(ids)
            leased.append(ids)
        elif leased:
            pages.unlease(leased.pop())
        for at, capacity in ((ARENA, arena), (TIER, tier)):
            assert before[at] <= held(pages, at)
            assert pages.count(at) == len(held(pages, at))
            assert capacity is None or pages.count(at) <= capacity
        there_now = {p for some in leased for p in some.tolist()}
        to_read = {p for p in there_now if pages.masks[p] & (IN_ARENA | 1 << TIER) == 1 << TIER}
        ids = np.array(sorted(there_now), np.int64)
        assert pages.count_to_read(TIER, ids) == len(to_read)
