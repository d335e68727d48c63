"""The prefix index as plainly as it can be written: the oracle that the tree is held against.

Everything is looked for, nothing is kept up to date. O(pages²) or worse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bana.radix_global.index import PrefixIndex
from bana.radix_global.keys import KEY_BYTES, split_keys
from bana.radix_global.pages import (
    ARENA,
    Chain,
    Evicted,
    IndexCounts,
    IndexLimits,
    Inserted,
    Lease,
    Match,
    PageState,
    PlaceCount,
)
from bana.slo.errors import StoreError

ROOT = b""


@dataclass
class _Page:
    parent: bytes
    places: set[int] = field(default_factory=set)
    slot: int = 0
    size_bytes: int = 0


class NaiveIndex(PrefixIndex):
    """An index of dictionaries and lists."""

    def __init__(self, limits: IndexLimits) -> None:
        self._limits = limits
        self._pages: dict[bytes, _Page] = {}
        self._by_use: list[bytes] = []
        self._leases: dict[tuple[str, int], bytes] = {}
        self._next_lease = 0

    def match(self, keys: bytes) -> Match:
        return self._describe(self._resident_prefix(keys))

    def touch(self, keys: bytes) -> int:
        prefix = self._resident_prefix(keys)
        self._mark_used(prefix)
        return len(prefix)

    def insert_in_arena(self, chain: Chain, slots: Sequence[int]) -> Inserted:
        if len(slots) * KEY_BYTES != len(chain.keys):
            raise StoreError(f"{len(slots)} slots for {len(chain.keys)} bytes of keys")
        inserted = self._insert(chain, ARENA)
        # Slots behind the last page taken are left alone.
        taken = zip(split_keys(chain.keys), slots, inserted.added, strict=False)
        for key, slot, is_added in taken:
            if is_added:
                self._pages[key].slot = slot
        return inserted

    def insert_on_tier(self, chain: Chain, tier: int) -> Inserted:
        self._check_tier(tier)
        return self._insert(chain, tier)

    def lease(self, owner: str, keys: bytes) -> Lease:
        if len(self._leases) == self._limits.max_leases:
            raise StoreError("all leases are held")
        prefix = self._resident_prefix(keys)
        self._link(prefix)
        for index in range(1, len(prefix)):
            if self._pages[prefix[index]].parent != prefix[index - 1]:
                prefix = prefix[:index]
                break
        self._mark_used(prefix)
        lease_id = self._next_lease
        self._next_lease += 1
        self._leases[owner, lease_id] = prefix[-1] if prefix else ROOT
        return Lease(lease_id, self._describe(prefix))

    def release(self, owner: str, lease_id: int) -> bool:
        was_held = self._leases.pop((owner, lease_id), None) is not None
        self._forget_unneeded()
        return was_held

    def release_owner(self, owner: str) -> int:
        held = [lease_id for name, lease_id in self._leases if name == owner]
        return sum(self.release(owner, lease_id) for lease_id in held)

    def evict(self, place: int, *, pages: int = 0, size_bytes: int = 0) -> Evicted:
        self._check_place(place)
        gone: list[tuple[bytes, _Page]] = []
        while len(gone) < pages or sum(page.size_bytes for _, page in gone) < size_bytes:
            key = next((key for key in self._by_use if self._may_go(key, place)), None)
            if key is None:
                break
            gone.append((key, self._pages[key]))
            self._pages[key].places.remove(place)
            self._forget_unneeded()
        return Evicted(
            keys=b"".join(key for key, _ in gone),
            slots=tuple(page.slot for _, page in gone) if place == ARENA else (),
            size_bytes=sum(page.size_bytes for _, page in gone),
        )

    def drop_from_tier(self, key: bytes, tier: int) -> bool:
        self._check_tier(tier)
        _check_key(key)
        if key not in self._pages or tier not in self._pages[key].places:
            return False
        self._pages[key].places.remove(tier)
        self._forget_unneeded()
        return True

    def drop_from_arena(self, key: bytes) -> int | None:
        _check_key(key)
        page = self._pages.get(key)
        if page is None or ARENA not in page.places or self._count_leases(key):
            return None
        page.places.remove(ARENA)
        self._forget_unneeded()
        return page.slot

    def inspect(self, key: bytes) -> PageState | None:
        _check_key(key)
        if key not in self._pages:
            return None
        page = self._pages[key]
        return PageState(
            parent=page.parent,
            places=sum(1 << place for place in page.places),
            slot=page.slot if ARENA in page.places else 0,
            children=len(self._children(key)),
            leases=self._count_leases(key),
            size_bytes=page.size_bytes if page.places else 0,
        )

    def counts(self) -> IndexCounts:
        resident = [page for page in self._pages.values() if page.places]
        places = []
        for place in range(self._limits.tiers + 1):
            there = [page.size_bytes for page in resident if place in page.places]
            places.append(PlaceCount(len(there), sum(there)))
        return IndexCounts(
            pages=len(resident),
            absent=len(self._pages) - len(resident),
            leases=len(self._leases),
            places=tuple(places),
        )

    def _insert(self, chain: Chain, place: int) -> Inserted:
        context = [chain.after] if chain.after else []
        keys = context + split_keys(chain.keys)
        room = self._limits.max_pages - len(self._pages)
        while sum(key not in self._pages for key in keys) > room:
            keys.pop()
        if len(keys) <= len(context):
            return Inserted(())
        self._link(keys)
        added = [self._settle(key, place, chain.page_bytes) for key in keys[len(context) :]]
        self._mark_used(keys[len(context) :])
        self._forget_unneeded()
        return Inserted(tuple(added))

    def _settle(self, key: bytes, place: int, page_bytes: int) -> bool:
        page = self._pages[key]
        if not page.places:
            page.size_bytes = page_bytes
        is_new = place not in page.places
        page.places.add(place)
        return is_new

    def _link(self, keys: list[bytes]) -> None:
        """Make each page known, and the child of the one before unless it hangs elsewhere."""
        above = ROOT
        for key in keys:
            page = self._pages.setdefault(key, _Page(above))
            if page.parent == ROOT and key not in self._path(above):
                page.parent = above
            above = key

    def _resident_prefix(self, keys: bytes) -> list[bytes]:
        prefix: list[bytes] = []
        for key in split_keys(keys):
            if key not in self._pages or not self._pages[key].places:
                break
            prefix.append(key)
        return prefix

    def _describe(self, keys: list[bytes]) -> Match:
        pages = [self._pages[key] for key in keys]
        return Match(
            places=bytes(sum(1 << place for place in page.places) for page in pages),
            slots=tuple(page.slot if ARENA in page.places else 0 for page in pages),
        )

    def _mark_used(self, keys: list[bytes]) -> None:
        for key in reversed(keys):
            if key in self._by_use:
                self._by_use.remove(key)
            self._by_use.append(key)

    def _may_go(self, key: bytes, place: int) -> bool:
        return (
            place in self._pages[key].places
            and not any(place in self._pages[child].places for child in self._children(key))
            and self._count_leases(key) == 0
        )

    def _children(self, key: bytes) -> list[bytes]:
        return [child for child, page in self._pages.items() if page.parent == key]

    def _count_leases(self, key: bytes) -> int:
        return sum(key in self._path(deepest) for deepest in self._leases.values())

    def _path(self, key: bytes) -> Iterator[bytes]:
        """The page and all its ancestors."""
        while key != ROOT:
            yield key
            key = self._pages[key].parent

    def _forget_unneeded(self) -> None:
        needed = {key for key, page in self._pages.items() if page.places}
        needed |= {deepest for deepest in self._leases.values() if deepest != ROOT}
        kept = {key for page in needed for key in self._path(page)}
        self._pages = {key: page for key, page in self._pages.items() if key in kept}
        self._by_use = [key for key in self._by_use if key in kept]

    def _check_place(self, place: int) -> None:
        if not 0 <= place <= self._limits.tiers:
            raise StoreError(f"no place {place}")

    def _check_tier(self, tier: int) -> None:
        if not 1 <= tier <= self._limits.tiers:
            raise StoreError(f"no tier {tier}")


def _check_key(key: bytes) -> None:
    if len(key) != KEY_BYTES:
        raise StoreError(f"{len(key)} bytes are no key")
