"""After a restart the index matches what it matched before, and lets leaves go first again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from bana.radix_global.index import PrefixIndex
from bana.radix_global.keys import split_keys
from bana.radix_global.naive import NaiveIndex
from bana.radix_global.pages import MAX_PAGE_BYTES, Chain, IndexLimits
from bana.radix_global.recovering import Recovered, chain_pages, recover_pages
from bana.radix_global.stores.directory import DirectoryStore
from bana.radix_global.stores.options import DirectoryOptions
from bana.radix_global.stores.store import HeldPage, PageOrigin, RefreshOutcome, WriteOutcome
from bana.radix_global.tree import PrefixTree

TIER = 1
PAGE_BYTES = 50
# The number of the page that each one follows; a page that follows itself is a first one.
FORESTS = st.lists(st.integers(0, 3), min_size=1, max_size=40).map(
    lambda steps: [max(0, number - step) for number, step in enumerate(steps)]
)


def _key(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(4, "big")).digest()[:16]


def _held(parents: Sequence[int], number: int, size_bytes: int = PAGE_BYTES) -> HeldPage:
    is_first = parents[number] == number
    parent = b"" if is_first else _key(parents[number])
    return HeldPage(_key(number), PageOrigin(parent, 7), size_bytes)


def _path(parents: Sequence[int], number: int) -> bytes:
    """The keys from the first page down to this one."""
    keys = [_key(number)]
    while parents[number] != number:
        number = parents[number]
        keys.append(_key(number))
    return b"".join(reversed(keys))


def _build(kind: type[PrefixTree] | type[NaiveIndex], max_pages: int = 1_000) -> PrefixIndex:
    return kind(IndexLimits(max_pages=max_pages, tiers=2))


def _fill(index: PrefixIndex, parents: Sequence[int]) -> None:
    """What the index knew before the restart, told prefix by prefix."""
    for number in range(len(parents)):
        index.insert_on_tier(Chain(keys=_path(parents, number), page_bytes=PAGE_BYTES), TIER)


def _stand(index: PrefixIndex, key: bytes) -> tuple[bytes, int, int]:
    """Below which page a page hangs, and what it is; its children may be beyond a lost page."""
    state = index.inspect(key)
    assert state is not None
    return state.parent, state.places, state.size_bytes


def _drain(index: PrefixIndex) -> list[bytes]:
    """Every page of the tier, one eviction after the other."""
    gone: list[bytes] = []
    while evicted := split_keys(index.evict(TIER, pages=1).keys):
        gone += evicted
    return gone


@given(
    parents=FORESTS,
    lost=st.sets(st.integers(0, 39)),
    portion=st.integers(1, 40),
    rng=st.randoms(use_true_random=False),
)
def test_what_matched_before_matches_again_and_leaves_go_first(
    parents: list[int], lost: set[int], portion: int, rng: Random
) -> None:
    before = _build(NaiveIndex)
    _fill(before, parents)
    for number in lost & set(range(len(parents))):
        before.drop_from_tier(_key(number), TIER)
    kept = [number for number in range(len(parents)) if number not in lost]
    rng.shuffle(kept)
    drained = []
    for kind in (PrefixTree, NaiveIndex):
        after = _build(kind)
        for start in range(0, len(kept), portion):
            pages = [_held(parents, number) for number in kept[start : start + portion]]
            assert recover_pages(after, TIER, pages) == Recovered(len(pages), 0)
        for number in range(len(parents)):
            path = _path(parents, number)
            assert after.match(path) == before.match(path)
        for number in kept:
            assert _stand(after, _key(number)) == _stand(before, _key(number))
        drained.append(_drain(after))
    assert drained[0] == drained[1]
    assert sorted(drained[0]) == sorted(_key(number) for number in kept)
    turns = {key: turn for turn, key in enumerate(drained[0])}
    for number in kept:
        parent = _key(parents[number])
        assert turns[_key(number)] <= turns.get(parent, len(turns))


@given(
    pages=st.lists(st.tuples(st.integers(0, 12), st.sampled_from([10, 20]))),
    portion=st.integers(1, 20),
)
def test_forged_links_neither_loop_nor_lose_a_page(
    pages: list[tuple[int, int]], portion: int
) -> None:
    """Any page may say that it follows any other: itself, one below it, or one that is not here."""
    forged = [
        HeldPage(_key(number), PageOrigin(_key(parent), 0), size_bytes)
        for number, (parent, size_bytes) in enumerate(pages)
    ]
    keys = sorted(page.key for page in forged)
    chained = [split_keys(chain.keys) for chain in chain_pages({page.key: page for page in forged})]
    assert sorted(key for chain in chained for key in chain) == keys
    for kind in (PrefixTree, NaiveIndex):
        index = _build(kind)
        for start in range(0, len(forged), portion):
            some = forged[start : start + portion]
            assert recover_pages(index, TIER, some) == Recovered(len(some), 0)
        assert sorted(_drain(index)) == keys
        assert index.counts().absent == 0


@given(parents=FORESTS, max_pages=st.integers(1, 40), rng=st.randoms(use_true_random=False))
def test_an_index_takes_what_it_has_room_for_and_the_rest_is_told(
    parents: list[int], max_pages: int, rng: Random
) -> None:
    pages = [_held(parents, number) for number in range(len(parents))]
    rng.shuffle(pages)
    index = _build(PrefixTree, max_pages)
    recovered = recover_pages(index, TIER, pages)
    assert recovered.taken == index.counts().pages == min(max_pages, len(pages))
    assert recovered.taken + recovered.refused == len(pages)


@given(parents=FORESTS, rng=st.randoms(use_true_random=False))
def test_there_are_as_many_chains_as_leaves(parents: list[int], rng: Random) -> None:
    numbers = list(range(len(parents)))
    rng.shuffle(numbers)
    chains = list(chain_pages({_key(n): _held(parents, n) for n in numbers}))
    inner = {parent for number, parent in enumerate(parents) if parent != number}
    assert len(chains) == len(parents) - len(inner)


def test_pages_of_another_size_begin_a_chain_of_their_own() -> None:
    parents = [0, 0, 1, 2]
    pages = [_held(parents, number, 10 + number // 2) for number in range(4)]
    index = _build(PrefixTree)
    assert recover_pages(index, TIER, pages) == Recovered(4, 0)
    states = [index.inspect(_key(number)) for number in range(4)]
    assert [state and state.size_bytes for state in states] == [10, 10, 11, 11]
    assert _drain(index) == [_key(number) for number in (3, 2, 1, 0)]


def test_pages_longer_than_an_index_takes_are_refused() -> None:
    pages = [_held([0, 0], 0), _held([0, 0], 1, MAX_PAGE_BYTES + 1)]
    assert recover_pages(_build(PrefixTree), TIER, pages) == Recovered(1, 1)


def test_the_pages_told_last_are_the_last_to_go() -> None:
    index = _build(PrefixTree)
    recover_pages(index, TIER, [_held([0, 1, 2], number) for number in (2, 0, 1)])
    assert _drain(index) == [_key(number) for number in (2, 0, 1)]


def test_a_restarted_directory_gives_the_index_its_prefixes_again(tmp_path: Path) -> None:
    """In small portions, after evictions: some pages have lost the one that they follow."""
    parents = [max(0, number - 1 - number % 3) for number in range(200)]
    options = DirectoryOptions(capacity_bytes=2**14, segment_bytes=2**11, scan_pages=7)
    store = DirectoryStore(tmp_path / "tier", options, Random(1))
    before = _build(PrefixTree)
    for number in range(len(parents)):
        page = _held(parents, number)
        write = store.put(page.key, number.to_bytes(PAGE_BYTES, "big"), page.origin)
        assert write.outcome is WriteOutcome.WRITTEN
        path = _path(parents, number)
        before.insert_on_tier(Chain(keys=path[-16:], page_bytes=PAGE_BYTES, after=path[-32:-16]), 1)
        for key in write.lost:
            assert before.drop_from_tier(key, TIER)
    store.close()
    again = DirectoryStore(tmp_path / "tier", options, Random(2))
    after, taken, outcome = _build(PrefixTree), 0, RefreshOutcome.PARTIAL
    while outcome is RefreshOutcome.PARTIAL:
        refresh = again.refresh()
        outcome = refresh.outcome
        taken += recover_pages(after, TIER, refresh.found).taken
    assert 50 < taken == len(again.pages()) < 150
    for page in again.pages():
        assert _stand(after, page.key) == _stand(before, page.key)
    assert after.counts().places == before.counts().places
    again.close()
