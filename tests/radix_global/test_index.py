"""What an index promises, told by example; the tree and the naive one keep it alike."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from bana.radix_global.index import PrefixIndex
from bana.radix_global.keys import split_keys
from bana.radix_global.naive import NaiveIndex
from bana.radix_global.pages import ARENA, Chain, IndexCounts, IndexLimits, Match, PlaceCount
from bana.radix_global.tree import PrefixTree
from bana.slo.errors import StoreError

DISK, REMOTE = 1, 2
IN_ARENA, ON_DISK, ON_REMOTE = 1 << ARENA, 1 << DISK, 1 << REMOTE
Build = Callable[..., PrefixIndex]


@pytest.fixture(params=[PrefixTree, NaiveIndex])
def build(request: pytest.FixtureRequest) -> Build:
    """A function: bounds in, an empty index with two tiers out."""

    def build_index(max_pages: int = 100, max_leases: int = 10) -> PrefixIndex:
        limits = IndexLimits(max_pages=max_pages, tiers=2, max_leases=max_leases)
        index: PrefixIndex = request.param(limits)
        return index

    return build_index


def key(path: str) -> bytes:
    """The key of the page that ends `path`, as a chained hash would give it."""
    return hashlib.sha256(path.encode()).digest()[:16]


def keys(path: str, start: int = 0) -> bytes:
    """The keys of the pages of `path`, one a letter, from the one at `start`."""
    return b"".join(key(path[:end]) for end in range(start + 1, len(path) + 1))


def chain(path: str, start: int = 0, page_bytes: int = 10) -> Chain:
    """The pages of `path` from the one at `start`, which hangs from the one before."""
    return Chain(
        keys=keys(path, start), page_bytes=page_bytes, after=key(path[:start]) * (start > 0)
    )


def evicted(index: PrefixIndex, place: int, pages: int = 100) -> list[bytes]:
    """The keys that left `place`, in order."""
    return split_keys(index.evict(place, pages=pages).keys)


def test_a_match_is_the_longest_known_prefix_and_says_where_each_page_is(build: Build) -> None:
    index = build()
    index.insert_on_tier(chain("abc"), DISK)
    index.insert_in_arena(chain("ab"), [7, 5])
    index.insert_on_tier(chain("abd"), REMOTE)
    everywhere = IN_ARENA | ON_DISK | ON_REMOTE
    assert index.match(keys("abcz")) == Match(bytes([everywhere, everywhere, ON_DISK]), (7, 5, 0))
    assert index.match(keys("abd")).places[2] == ON_REMOTE
    assert index.match(keys("x")).pages == 0
    assert index.match(b"").pages == 0


def test_a_match_may_begin_in_the_middle_of_a_chain(build: Build) -> None:
    index = build()
    index.insert_on_tier(chain("abcd"), DISK)
    assert index.match(keys("abcd", start=2)).pages == 2


def test_a_slot_of_a_page_that_is_there_already_stays_the_callers(build: Build) -> None:
    index = build()
    assert index.insert_in_arena(chain("ab"), [1, 2]).added == (True, True)
    assert index.insert_in_arena(chain("abc"), [3, 4, 5]).added == (False, False, True)
    assert index.match(keys("abc")).slots == (1, 2, 5)


def test_leaves_go_first_and_a_shared_prefix_outlives_its_branches(build: Build) -> None:
    index = build()
    index.insert_in_arena(chain("abc"), [1, 2, 3])
    index.insert_in_arena(chain("abd", start=2), [4])
    assert index.touch(keys("ab")) == 2
    assert evicted(index, ARENA) == [key("abc"), key("abd"), key("ab"), key("a")]
    assert index.counts() == IndexCounts(0, 0, 0, (PlaceCount(0, 0),) * 3)


def test_the_least_recently_used_leaf_goes_first(build: Build) -> None:
    index = build()
    for slot, path in enumerate("abc"):
        index.insert_in_arena(chain(path), [slot])
    index.touch(keys("a"))
    assert index.evict(ARENA, pages=1).slots == (1,)
    assert index.evict(ARENA, pages=2).slots == (2, 0)


def test_each_place_evicts_by_itself(build: Build) -> None:
    index = build()
    index.insert_on_tier(chain("abc"), DISK)
    index.insert_in_arena(chain("ab"), [1, 2])
    # The third page is no child in the arena, so the second may leave that, but not the disk.
    assert evicted(index, ARENA, pages=1) == [key("ab")]
    assert evicted(index, DISK, pages=1) == [key("abc")]
    assert index.match(keys("abc")).places == bytes([IN_ARENA | ON_DISK, ON_DISK])
    assert evicted(index, REMOTE) == []


def test_eviction_frees_at_least_the_bytes_that_were_asked_for(build: Build) -> None:
    index = build()
    index.insert_on_tier(chain("ab", page_bytes=100), DISK)
    index.insert_on_tier(chain("z", page_bytes=7), DISK)
    gone = index.evict(DISK, size_bytes=101)
    assert (split_keys(gone.keys), gone.size_bytes) == ([key("ab"), key("a")], 200)
    assert index.counts().places[DISK] == PlaceCount(1, 7)


def test_a_leased_page_and_its_ancestors_stay_until_the_release(build: Build) -> None:
    index = build()
    index.insert_in_arena(chain("abcd"), [1, 2, 3, 4])
    lease = index.lease("one", keys("ab"))
    other = index.lease("two", keys("abc", start=2))
    assert (lease.match.slots, other.match.slots) == ((1, 2), (3,))
    assert evicted(index, ARENA) == [key("abcd")]
    assert index.release("two", other.lease_id)
    assert evicted(index, ARENA) == [key("abc")]
    assert index.match(keys("ab")).slots == (1, 2)
    assert index.release("one", lease.lease_id)
    assert not index.release("one", lease.lease_id)
    assert evicted(index, ARENA) == [key("ab"), key("a")]


def test_a_lease_is_ended_by_its_owner_or_with_it(build: Build) -> None:
    index = build()
    index.insert_in_arena(chain("a"), [1])
    held = [index.lease("one", keys("a")).lease_id for _ in range(3)]
    assert not index.release("two", held[0])
    assert index.release("one", held[0])
    assert index.release_owner("one") == 2
    assert index.release_owner("one") == 0
    assert evicted(index, ARENA) == [key("a")]


def test_leases_are_bounded(build: Build) -> None:
    index = build(max_leases=1)
    index.insert_in_arena(chain("a"), [1])
    held = index.lease("one", keys("a"))
    with pytest.raises(StoreError, match="leases"):
        index.lease("two", keys("a"))
    index.release("one", held.lease_id)
    assert index.lease("two", keys("ab")).match.pages == 1


def test_a_bad_page_is_dropped_on_its_tier_only(build: Build) -> None:
    index = build()
    index.insert_on_tier(chain("abc"), DISK)
    index.insert_on_tier(chain("abc"), REMOTE)
    index.lease("one", keys("abc"))
    assert index.drop_from_tier(key("b"), DISK) is False
    assert index.drop_from_tier(key("ab"), DISK) is True
    assert index.drop_from_tier(key("ab"), DISK) is False
    both = ON_DISK | ON_REMOTE
    assert index.match(keys("abc")).places == bytes([both, ON_REMOTE, both])


def test_a_page_is_cleared_from_the_arena_unless_it_is_leased(build: Build) -> None:
    index = build()
    index.insert_in_arena(chain("ab"), [3, 4])
    index.insert_on_tier(chain("ab"), DISK)
    lease = index.lease("one", keys("ab"))
    assert index.drop_from_arena(key("a")) is None
    index.release("one", lease.lease_id)
    assert index.drop_from_arena(key("a")) == 3
    assert index.drop_from_arena(key("a")) is None
    assert index.match(keys("ab")).places == bytes([ON_DISK, IN_ARENA | ON_DISK])


def test_descendants_of_a_dropped_page_are_found_again_when_it_is_back(build: Build) -> None:
    index = build()
    index.insert_on_tier(chain("abcd"), DISK)
    index.drop_from_tier(key("ab"), DISK)
    assert index.match(keys("abcd")).pages == 1
    assert index.counts() == IndexCounts(
        3, 1, 0, (PlaceCount(0, 0), PlaceCount(3, 30), PlaceCount(0, 0))
    )
    index.insert_in_arena(chain("ab"), [1, 2])
    assert index.match(keys("abcd")).pages == 4


def test_an_absent_page_is_forgotten_with_its_last_descendant(build: Build) -> None:
    index = build()
    index.insert_on_tier(chain("abc"), DISK)
    index.drop_from_tier(key("b"), DISK)
    index.drop_from_tier(key("ab"), DISK)
    assert evicted(index, DISK) == [key("abc"), key("a")]
    assert index.inspect(key("ab")) is None
    assert index.counts().absent == 0


def test_pages_may_be_told_in_any_order(build: Build) -> None:
    index = build()
    for start in (2, 0, 3, 1):
        index.insert_on_tier(chain("abcd"[: start + 1], start), DISK)
    for end in (2, 3, 4):
        state = index.inspect(key("abcd"[:end]))
        assert state is not None
        assert state.parent == key("abcd"[: end - 1])
    assert index.match(keys("abcd")).pages == 4


def test_a_page_whose_parent_was_not_told_is_hung_up_by_a_later_chain(build: Build) -> None:
    index = build()
    index.insert_on_tier(Chain(keys=key("ab"), page_bytes=10), DISK)
    index.lease("one", key("ab"))
    index.insert_on_tier(chain("a"), DISK)
    index.insert_in_arena(chain("ab"), [1, 2])
    state = index.inspect(key("a"))
    assert state is not None
    assert (state.children, state.leases) == (1, 1)
    assert evicted(index, DISK) == []


def test_a_lease_hangs_up_what_only_its_keys_connect(build: Build) -> None:
    index = build()
    index.insert_on_tier(Chain(keys=key("ab"), page_bytes=10), DISK)
    index.insert_on_tier(chain("a"), DISK)
    assert index.lease("one", keys("ab")).match.pages == 2
    assert evicted(index, DISK) == []


def test_a_leased_page_that_turned_out_bad_is_forgotten_after_the_release(build: Build) -> None:
    index = build()
    index.insert_on_tier(chain("ab"), DISK)
    lease = index.lease("one", keys("ab"))
    index.drop_from_tier(key("ab"), DISK)
    assert index.counts().absent == 1
    index.release("one", lease.lease_id)
    assert index.counts() == IndexCounts(
        1, 0, 0, (PlaceCount(0, 0), PlaceCount(1, 10), PlaceCount(0, 0))
    )


def test_a_full_index_takes_the_beginning_of_a_chain(build: Build) -> None:
    index = build(max_pages=3)
    assert index.insert_in_arena(chain("ab"), [1, 2]).added == (True, True)
    assert index.insert_on_tier(chain("abcd"), DISK).added == (True, True, True)
    assert index.insert_on_tier(chain("x"), DISK).added == ()
    # Neither does a parent stay behind without the page that it was made known for.
    assert index.insert_on_tier(chain("yz", start=1), DISK).added == ()
    index.evict(DISK, pages=1)
    assert index.insert_on_tier(chain("yz", start=1), DISK).added == ()
    assert index.counts().absent == 0
    assert index.insert_on_tier(chain("xz"), DISK).added == (True,)


def test_forged_links_protect_nothing_and_hang_nothing(build: Build) -> None:
    index = build()
    index.insert_on_tier(Chain(keys=key("x") + key("y"), page_bytes=1), DISK)
    index.insert_on_tier(Chain(keys=key("y") + key("x"), page_bytes=1), DISK)
    index.insert_on_tier(Chain(keys=key("z") + key("y"), page_bytes=1), DISK)
    # The first word holds: y hangs from x. A lease covers only what is linked.
    assert index.match(key("z") + key("y")).pages == 2
    assert index.lease("one", key("z") + key("y")).match.pages == 1
    assert evicted(index, DISK) == [key("y"), key("x")]


def test_siblings_that_are_named_as_a_chain_both_hold_their_parent(build: Build) -> None:
    index = build()
    index.insert_in_arena(chain("a"), [1])
    index.insert_on_tier(chain("ab"), DISK)
    index.insert_on_tier(chain("ac"), DISK)
    index.insert_in_arena(Chain(keys=key("ab") + key("ac"), page_bytes=10), [2, 3])
    assert evicted(index, ARENA) == [key("ac"), key("ab"), key("a")]


@pytest.mark.parametrize("place", [-1, 3])
def test_a_place_that_does_not_exist_is_refused(build: Build, place: int) -> None:
    index = build()
    with pytest.raises(StoreError):
        index.evict(place, pages=1)
    with pytest.raises(StoreError):
        index.insert_on_tier(chain("a"), place)
    with pytest.raises(StoreError):
        index.drop_from_tier(key("a"), place)
    with pytest.raises(StoreError):
        index.insert_on_tier(chain("a"), ARENA)
    assert index.counts().pages == 0


def test_malformed_requests_are_refused(build: Build) -> None:
    index = build()
    for keys_given in (b"x", bytes(17)):
        with pytest.raises(StoreError):
            index.match(keys_given)
        with pytest.raises(StoreError):
            index.lease("one", keys_given)
        with pytest.raises(StoreError):
            index.inspect(keys_given)
    with pytest.raises(StoreError):
        index.insert_in_arena(chain("ab"), [1])
