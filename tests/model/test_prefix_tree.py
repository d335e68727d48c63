"""Whatever is done in whatever order: the tree answers as the naive index, and keeps its laws."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bana.radix_global.index import PrefixIndex
from bana.radix_global.keys import split_keys
from bana.radix_global.naive import NaiveIndex
from bana.radix_global.pages import ARENA, Chain, IndexLimits, Inserted, Lease
from bana.radix_global.tree import PrefixTree
from bana.slo.errors import StoreError

TIERS = 2
LETTERS = "ab"
DEPTH = 3
OWNERS = st.sampled_from(["one", "two"])
PLACES = st.integers(-1, TIERS + 1)
REAL_TIERS = st.integers(1, TIERS)
Answer = TypeVar("Answer")


def _key(path: str) -> bytes:
    return hashlib.sha256(path.encode()).digest()[:16]


def _keys(path: str, start: int = 0) -> bytes:
    return b"".join(_key(path[:end]) for end in range(start + 1, len(path) + 1))


PATHS = [
    "".join(letters)
    for depth in range(1, DEPTH + 1)
    for letters in itertools.product(LETTERS, repeat=depth)
]
PATHS.append("abaab")
UNIVERSE = [_key(path) for path in [*PATHS, "abaa"]]
PATH = st.sampled_from(PATHS)
# What no chained hash would give: any pages in any order.
FORGED = st.lists(st.sampled_from(UNIVERSE), unique=True, max_size=4)
ASKED = PATH.map(_keys) | FORGED.map(b"".join) | st.sampled_from([b"x", _keys("ab") + b"x"])


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """Mostly true chains, whole or from somewhere, with or without a word on what comes before."""
    page_bytes = draw(st.integers(1, 3))
    if draw(st.integers(0, 4)) == 0:
        forged = draw(FORGED)
        count = draw(st.integers(0, min(1, len(forged))))
        keys = b"".join(forged[count:])
        return Chain(keys=keys, page_bytes=page_bytes, after=b"".join(forged[:count]))
    path = draw(PATH)
    start = draw(st.integers(0, len(path) - 1))
    after = _key(path[:start]) if start and draw(st.booleans()) else b""
    return Chain(keys=_keys(path, start), page_bytes=page_bytes, after=after)


class TreeMachine(RuleBasedStateMachine):
    """Both indexes side by side, and what each lease was promised."""

    @initialize(max_pages=st.integers(1, 12), max_leases=st.integers(1, 4))
    def build(self, max_pages: int, max_leases: int) -> None:
        self.limits = IndexLimits(max_pages=max_pages, tiers=TIERS, max_leases=max_leases)
        self.tree: PrefixIndex = PrefixTree(self.limits)
        self.naive: PrefixIndex = NaiveIndex(self.limits)
        self.leases: dict[int, str] = {}
        # Of each lease: the places of each page at that time, and the slots.
        self.promised: dict[int, dict[bytes, tuple[int, int]]] = {}
        self.free_slots = itertools.count(100)

    def _ask(self, call: Callable[[PrefixIndex], Answer]) -> Answer | None:
        answers = [_outcome(call, index) for index in (self.tree, self.naive)]
        assert answers[0] == answers[1]
        return answers[0]

    @rule(chain=chains())
    def insert_in_arena(self, chain: Chain) -> None:
        slots = [next(self.free_slots) for _ in split_keys(chain.keys)]
        inserted = self._ask(lambda index: index.insert_in_arena(chain, slots))
        self._check_inserted(chain, inserted)

    @rule(chain=chains(), tier=PLACES)
    def insert_on_tier(self, chain: Chain, tier: int) -> None:
        inserted = self._ask(lambda index: index.insert_on_tier(chain, tier))
        if inserted is not None:
            self._check_inserted(chain, inserted)

    @rule(keys=ASKED)
    def touch(self, keys: bytes) -> None:
        self._ask(lambda index: index.touch(keys))

    @rule(keys=ASKED)
    def match(self, keys: bytes) -> None:
        self._ask(lambda index: index.match(keys))

    @rule(owner=OWNERS, keys=ASKED)
    def lease(self, owner: str, keys: bytes) -> None:
        lease = self._ask(lambda index: index.lease(owner, keys))
        if lease is not None:
            self.leases[lease.lease_id] = owner
            self.promised[lease.lease_id] = self._promise(keys, lease)

    @rule(owner=OWNERS, lease_id=st.integers(0, 12))
    def release(self, owner: str, lease_id: int) -> None:
        was_held = self._ask(lambda index: index.release(owner, lease_id))
        assert was_held == (self.leases.get(lease_id) == owner)
        if was_held:
            self._end(lease_id)

    @rule(owner=OWNERS)
    def release_owner(self, owner: str) -> None:
        held = [lease_id for lease_id, holder in self.leases.items() if holder == owner]
        assert self._ask(lambda index: index.release_owner(owner)) == len(held)
        for lease_id in held:
            self._end(lease_id)

    @rule(place=PLACES, pages=st.integers(0, 3), size_bytes=st.integers(0, 4))
    def evict(self, place: int, pages: int, size_bytes: int) -> None:
        self._ask(lambda index: index.evict(place, pages=pages, size_bytes=size_bytes))

    @rule(path=PATH, tier=REAL_TIERS)
    def drop_from_tier(self, path: str, tier: int) -> None:
        if self._ask(lambda index: index.drop_from_tier(_key(path), tier)):
            for pages in self.promised.values():
                if _key(path) in pages:
                    places, slot = pages[_key(path)]
                    pages[_key(path)] = (places & ~(1 << tier), slot)

    @rule(path=PATH)
    def drop_from_arena(self, path: str) -> None:
        self._ask(lambda index: index.drop_from_arena(_key(path)))

    @invariant()
    def all_that_is_known_is_equal(self) -> None:
        self._ask(lambda index: index.counts())
        for key in UNIVERSE:
            self._ask(lambda index, key=key: index.inspect(key))  # type: ignore[misc]

    @invariant()
    def bounds_hold(self) -> None:
        counts = self.tree.counts()
        assert counts.pages + counts.absent <= self.limits.max_pages
        assert counts.leases == len(self.leases) <= self.limits.max_leases

    @invariant()
    def leases_hold(self) -> None:
        for pages in self.promised.values():
            for key, (places, slot) in pages.items():
                state = self.tree.inspect(key)
                assert state is not None
                assert state.leases > 0
                assert state.places & places == places
                if places & 1 << ARENA:
                    assert state.slot == slot

    def teardown(self) -> None:
        """Once everything is released and evicted, nothing is left."""
        if not hasattr(self, "tree"):
            return
        for owner in ("one", "two"):
            self._ask(lambda index, owner=owner: index.release_owner(owner))  # type: ignore[misc]
        for place in range(TIERS + 1):
            self._ask(lambda index, place=place: index.evict(place, pages=99))  # type: ignore[misc]
        counts = self.tree.counts()
        assert (counts.pages, counts.absent, counts.leases) == (0, 0, 0)
        assert all(place.pages == place.size_bytes == 0 for place in counts.places)

    def _check_inserted(self, chain: Chain, inserted: Inserted | None) -> None:
        assert inserted is not None
        keys = split_keys(chain.keys)[: len(inserted.added)]
        assert self.tree.match(b"".join(keys)).pages == len(keys)

    def _promise(self, keys: bytes, lease: Lease) -> dict[bytes, tuple[int, int]]:
        """Where the leased pages and all their ancestors are."""
        covered = split_keys(keys)[: lease.match.pages]
        pages = {}
        for key in covered:
            while key and key not in pages:
                state = self.tree.inspect(key)
                assert state is not None
                pages[key] = (state.places, state.slot)
                key = state.parent
        return pages

    def _end(self, lease_id: int) -> None:
        del self.leases[lease_id]
        del self.promised[lease_id]


def _outcome(call: Callable[[PrefixIndex], Answer], index: PrefixIndex) -> Answer | None:
    """What the index answers, None where it refuses."""
    try:
        return call(index)
    except StoreError:
        return None


TestPrefixTree = TreeMachine.TestCase
TestPrefixTree.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
