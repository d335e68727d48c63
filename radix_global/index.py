"""Which pages are known, where they reside, and which may go: the contract of a prefix index.

    keys of a prompt   k0 ── k1 ── k2 ── k3           resides in
                                    │                 k0 k1 k2  arena, tier 1
                                    └── k9            k3        tier 1
                                                      k9        arena
    eviction from the arena begins with k9, then k2; from tier 1 with k3, then k2

A key says what a page is, wherever it came from; the parent links only say in which order pages go
and what a lease protects. Links are told by `insert_*` and `lease` and never change once told: what
hangs from the root for want of a word is hung up properly as soon as a chain names both pages.

The index decides and carries nothing out: that is for whoever owns the arena and the tiers. It
knows no time: recency is the order of the calls. One thread owns it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bana.radix_global.pages import (
    Chain,
    Evicted,
    IndexCounts,
    Inserted,
    Lease,
    Match,
    PageState,
)


class PrefixIndex(Protocol):
    """Every method raises StoreError for keys that are no whole keys and places that do not exist.

    A page stays known while it resides somewhere, has a known child, or is leased. One that resides
    nowhere is *absent*: no match reaches past it, but once it is inserted again its descendants are
    found again.
    """

    def match(self, keys: bytes) -> Match:
        """The longest prefix of `keys` whose pages all reside somewhere; changes nothing."""

    def touch(self, keys: bytes) -> int:
        """Mark that prefix as used just now, its first page last; how many pages it has."""

    def insert_in_arena(self, chain: Chain, slots: Sequence[int]) -> Inserted:
        """The pages of `chain` lie in `slots` of the arena; the slot of each one added is taken."""

    def insert_on_tier(self, chain: Chain, tier: int) -> Inserted:
        """The pages of `chain` are on `tier`. They count as used now, as all inserted pages do."""

    def lease(self, owner: str, keys: bytes) -> Lease:
        """Lease the matching prefix: it and its ancestors stay where they are until the release.

        It counts as used now. StoreError where `max_leases` are held.
        """

    def release(self, owner: str, lease_id: int) -> bool:
        """End a lease; False where `owner` holds no such lease (any more)."""

    def release_owner(self, owner: str) -> int:
        """End all leases of an owner that is proven dead; how many those were."""

    def evict(self, place: int, *, pages: int = 0, size_bytes: int = 0) -> Evicted:
        """Take pages off `place` until both goals are reached or nothing more may go.

        Next is always the least recently used page that is not leased and has no child at `place`.
        """

    def drop_from_tier(self, key: bytes, tier: int) -> bool:
        """A page turned out bad on `tier`: it is there no longer, leased or not.

        False where it was not there. It stays wherever else it resides, and so do its descendants.
        """

    def drop_from_arena(self, key: bytes) -> int | None:
        """Give up a page's slot, which is the caller's again; None where it is leased or not there.

        It stays wherever else it resides, and so do its descendants.
        """

    def inspect(self, key: bytes) -> PageState | None:
        """All about one page, None where it is not known."""

    def counts(self) -> IndexCounts:
        """What the index holds. O(places)."""
