"""The records in which the index is asked and answers.

A *place* keeps pages: place 0 is the arena, places 1, 2, … are the tiers. Where a page resides is a
bit mask of places. Keys are 16 bytes each; several of them are written end to end.
"""

from __future__ import annotations

import msgspec

from bana.radix_global.keys import KEY_BYTES, split_keys
from bana.slo.errors import ConfigError, StoreError

ARENA = 0
MAX_TIERS = 7
MAX_PAGES = 2**31 - 2
MAX_PAGE_BYTES = 2**31 - 1


class IndexLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much the index may know; `tiers` is the number of places besides the arena."""

    max_pages: int
    tiers: int
    max_leases: int = 100_000

    def __post_init__(self) -> None:
        _require_within("max_pages", self.max_pages, 1, MAX_PAGES)
        _require_within("tiers", self.tiers, 0, MAX_TIERS)
        _require_within("max_leases", self.max_leases, 1, 2**31)


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """Pages in the order of their prefix, of `page_bytes` each.

    `after` is the key of the page before the first, empty where none is known.
    """

    keys: bytes
    page_bytes: int
    after: bytes = b""

    def __post_init__(self) -> None:
        if not 1 <= self.page_bytes <= MAX_PAGE_BYTES:
            raise StoreError(f"page_bytes={self.page_bytes}, allowed: 1..{MAX_PAGE_BYTES}")
        if len(self.after) not in (0, KEY_BYTES):
            raise StoreError(f"`after` has {len(self.after)} bytes; send one key or nothing")
        keys = split_keys(self.after + self.keys)
        if len(set(keys)) != len(keys):
            raise StoreError("a chain names a page twice; a page's key depends on all before it")


class Match(msgspec.Struct, frozen=True):
    """The longest known prefix, one entry a page.

    `places` is the bit mask of each page's places. `slots` is its slot in the arena, 0 and without
    a meaning where the page is not there.
    """

    places: bytes
    slots: tuple[int, ...]

    @property
    def pages(self) -> int:
        """How many pages are known."""
        return len(self.places)


class Inserted(msgspec.Struct, frozen=True):
    """For each page taken, in order, whether it is new at the place.

    Shorter than the chain where the index is full. In the arena, the slot of a page that is not
    new stays the caller's to free.
    """

    added: tuple[bool, ...]


class Lease(msgspec.Struct, frozen=True):
    """A lease and what it covers, possibly nothing; it lasts until it is released."""

    lease_id: int
    match: Match


class Evicted(msgspec.Struct, frozen=True):
    """Pages that left a place, the first to go first; `slots` are theirs in the arena."""

    keys: bytes
    slots: tuple[int, ...]
    size_bytes: int


class PageState(msgspec.Struct, frozen=True):
    """All about one known page.

    `places` and `size_bytes` are 0 where it is kept for its descendants or leases only, `slot`
    where it is not in the arena. `children` counts the known next pages, `leases` those on the
    page or any of its descendants; `parent` is empty where none is known.
    """

    parent: bytes
    places: int
    slot: int
    children: int
    leases: int
    size_bytes: int


class PlaceCount(msgspec.Struct, frozen=True):
    """What a place holds."""

    pages: int
    size_bytes: int


class IndexCounts(msgspec.Struct, frozen=True):
    """What the index holds: `pages` that reside somewhere, and `absent` ones that do not.

    Both together are bounded by `IndexLimits.max_pages`.
    """

    pages: int
    absent: int
    leases: int
    places: tuple[PlaceCount, ...]


def _require_within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"index.{name}={value}, allowed: {low}..{high}; correct it")
