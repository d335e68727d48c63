"""Prefixes that an administrator has brought into the arena, or keeps there.

Each is a want of an owner of its own, so that its lease is like any other. A pin is one that is not
released when it has arrived; pins last until they are ended. The daemon's next life makes them
again (`kept_pins`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from bana.radix_global.daemon.floor import Floor
from bana.radix_global.daemon.owners import UNKNOWN_NAMESPACE, Owner
from bana.radix_global.index import PrefixIndex
from bana.radix_global.keys import KEY_BYTES, count_keys
from bana.radix_global.messages import Event, Prefetch, Settled
from bana.radix_global.wire_parts import CLIENT_ID_BYTES
from bana.slo.errors import StoreError

MAX_PINS = 4096


class Fetched(msgspec.Struct, frozen=True):
    """How it ended: `pages` of `asked` are in the arena, because of `outcome` no more."""

    asked: int
    pages: int
    size_bytes: int
    outcome: str


class Pin(NamedTuple):
    """A prefix that is kept, as it was asked for, and who keeps it."""

    owner: Owner
    keys: bytes


Report = Callable[[Fetched], None]


class Pinning:
    """Warming and pinning over one arena."""

    def __init__(self, floor: Floor, index: PrefixIndex, pinned_share: float) -> None:
        self._floor = floor
        self._index = index
        self._most_pages = int(pinned_share * floor.layout.slots)
        self._pins: dict[bytes, Pin] = {}
        self._settled: list[Owner] = []
        self._begun = 0
        self.changes = 0

    @property
    def pinned_pages(self) -> int:
        """How many pages are kept; those that pins share count for each."""
        return sum(pin.owner.leased_pages for pin in self._pins.values())

    def pins(self) -> tuple[bytes, ...]:
        """The keys of all pins; they are others once `changes` has grown."""
        return tuple(pin.keys for pin in self._pins.values())

    def plan(self, keys: bytes) -> Fetched:
        """What warming would find: the pages known, and those that are in the arena already."""
        places = self._index.match(keys).places
        is_here = sum(mask & 1 for mask in places)
        size_bytes = self._page_bytes(keys) * (len(places) - is_here)
        return Fetched(count_keys(keys), len(places), size_bytes, f"{is_here} are there already")

    def warm(self, keys: bytes, deadline_s: float, report: Report) -> None:
        """Bring the known prefix in; `report` is called once nothing more will come."""
        owner = self._build_owner(keys, report)
        self._fetch(owner, keys, deadline_s)

    def pin(self, keys: bytes, deadline_s: float, report: Report) -> None:
        """The same, and keep it; StoreError where too much is kept already."""
        end, pages = keys[-KEY_BYTES:], count_keys(keys)
        if end in self._pins:
            raise StoreError(f"a prefix that ends at {end.hex()} is pinned already; unpin it first")
        asked = sum(count_keys(pin.keys) for pin in self._pins.values())
        if len(self._pins) >= MAX_PINS or asked + pages > self._most_pages:
            raise StoreError(
                f"{asked} pages are asked for by {len(self._pins)} pins, {pages} more by this one, "
                f"allowed: {self._most_pages} and {MAX_PINS}; unpin some"
            )
        owner = self._build_owner(keys, report)
        self._pins[end] = Pin(owner, keys)
        self.changes += 1
        self._fetch(owner, keys, deadline_s)

    def ends(self, end: bytes) -> tuple[bytes, ...]:
        """The last keys of the pins that `end` means: all where it is empty."""
        if not end:
            return tuple(self._pins)
        return (end,) if end in self._pins else ()

    def count(self, end: bytes) -> int:
        """How many pages a pin keeps."""
        return self._pins[end].owner.leased_pages

    def unpin(self, end: bytes) -> int:
        """End a pin; how many pages it kept."""
        owner = self._pins.pop(end).owner
        self.changes += 1
        pages = owner.leased_pages
        self._floor.let_go(owner)
        return pages

    def sweep(self) -> None:
        """Release what was warmed and is not pinned, and forget pins of which nothing came."""
        for owner in self._settled:
            end = next((end for end, pin in self._pins.items() if pin.owner is owner), None)
            if end is None:
                self._floor.let_go(owner)
            elif not owner.wants:
                del self._pins[end]
                self.changes += 1
        self._settled.clear()

    def _build_owner(self, keys: bytes, report: Report) -> Owner:
        self._begun += 1
        # Clients draw ids at random, and none would draw this one.
        client = self._begun.to_bytes(CLIENT_ID_BYTES, "big")

        def tell(event: Event) -> None:
            if isinstance(event, Settled):
                self._end(owner, keys, event, report)

        owner = Owner(
            client=client,
            label="administrator",
            pid=0,
            page_bytes=self._page_bytes(keys),
            tag=UNKNOWN_NAMESPACE,
            tell=tell,
        )
        return owner

    def _fetch(self, owner: Owner, keys: bytes, deadline_s: float) -> None:
        self._floor.wants.add(owner, Prefetch(1, keys, deadline_s, deadline_s))

    def _end(self, owner: Owner, keys: bytes, event: Settled, report: Report) -> None:
        size_bytes = event.pages * owner.page_bytes
        report(Fetched(count_keys(keys), event.pages, size_bytes, event.outcome))
        self._settled.append(owner)

    def _page_bytes(self, keys: bytes) -> int:
        """The size of a prefix's pages, which all are alike; a slot's where none is known."""
        page = self._index.inspect(keys[:KEY_BYTES])
        return page.size_bytes if page and page.size_bytes else self._floor.layout.slot_bytes
