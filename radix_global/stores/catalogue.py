"""Where the pages of a directory store stand, in memory: rebuilt by scanning, never written."""

from __future__ import annotations

import dataclasses
import struct
import threading
from collections.abc import Iterable

import msgspec

from bana.radix_global.stores.page import ORIGIN_BYTES, EntryKind, parse_origin
from bana.radix_global.stores.recovery import Entry
from bana.radix_global.stores.store import HeldPage

# What is known of one page, beside its key: offset, length and origin.
_ROW = struct.Struct(f"<QQ{ORIGIN_BYTES}s")


@dataclasses.dataclass(eq=False, slots=True)
class Segment:
    """One known segment: its size as last seen, and how far its entries are known.

    Its pages stand in `keys` and, packed, in `rows`; both only grow.
    """

    name: str
    size_bytes: int = 0
    known_bytes: int = 0
    is_damaged: bool = False
    keys: list[bytes] = dataclasses.field(default_factory=list)
    rows: bytearray = dataclasses.field(default_factory=bytearray)

    def add(self, entry: Entry) -> Location:
        """Take over what the next page's entry says."""
        row, header = len(self.rows), entry.header
        self.rows += _ROW.pack(entry.offset, header.length_bytes, header.origin)
        self.keys.append(header.key)
        return Location(self, row)


class Extent(msgspec.Struct, frozen=True, gc=False):
    """Where a page's header begins in its segment, how long its payload is, its packed origin."""

    offset: int
    length_bytes: int
    origin: bytes


class Location(msgspec.Struct, eq=False, gc=False):
    """Where one page stands, and whether it was read since it was written there.

    Millions of them are held, so that what they say stays packed in their segment, and the garbage
    collector is spared them: a segment knows no location.
    """

    segment: Segment
    row: int
    is_hot: bool = False

    def unpack(self) -> Extent:
        """All of it at once."""
        return Extent(*_ROW.unpack_from(self.segment.rows, self.row))

    def describe(self, key: bytes) -> HeldPage:
        """The page that stands here under `key`."""
        extent = self.unpack()
        return HeldPage(key, parse_origin(key, extent.origin), extent.length_bytes)


class Changes:
    """Which pages came to be held and ceased to be, net: one found again was never lost."""

    def __init__(self) -> None:
        self._found: dict[bytes, Location] = {}
        self._lost: dict[bytes, None] = {}

    def add_found(self, key: bytes, location: Location) -> None:
        """`key` was not held and now is, at `location`."""
        if key in self._lost:
            del self._lost[key]
        else:
            self._found[key] = location

    def add_lost(self, key: bytes) -> None:
        """`key` was held and is no longer."""
        if key in self._found:
            del self._found[key]
        else:
            self._lost[key] = None

    @property
    def found(self) -> tuple[HeldPage, ...]:
        """Oldest first."""
        return tuple(location.describe(key) for key, location in self._found.items())

    @property
    def lost(self) -> tuple[bytes, ...]:
        """Oldest first."""
        return tuple(self._lost)


class Catalogue:
    """Key -> location, one a key: the copy in the newest segment, which is evicted last.

    Thread-safe; O(1) for each page given, found or lost. `entries` counts the keys noted in all
    segments: superseded ones take memory too.
    """

    def __init__(self) -> None:
        self._locations: dict[bytes, Location] = {}
        self._segments: dict[str, Segment] = {}
        self._lock = threading.Lock()
        self.entries = 0

    def __len__(self) -> int:
        return len(self._locations)

    def find(self, key: bytes) -> Location | None:
        """Where the page stands, if anywhere."""
        with self._lock:
            return self._locations.get(key)

    def pages(self) -> list[HeldPage]:
        """All pages; O(pages), of which only a copy of the references holds others up."""
        with self._lock:
            held = list(self._locations.items())
        return [location.describe(key) for key, location in held]

    def segments(self) -> list[Segment]:
        """All segments, the oldest first; O(segments), times their logarithm."""
        with self._lock:
            return sorted(self._segments.values(), key=lambda segment: segment.name)

    def knows(self, segment: Segment) -> bool:
        """Whether `segment` is one of `segments`."""
        return self._segments.get(segment.name) is segment

    def pages_at(self, segment: Segment) -> list[HeldPage]:
        """The pages that stand in `segment`; superseded copies are not among them."""
        with self._lock:
            places = {key: self._locations.get(key) for key in segment.keys}
        return [
            place.describe(key)
            for key, place in places.items()
            if place is not None and place.segment is segment
        ]

    def segment_count(self) -> int:
        """How many segments are known."""
        return len(self._segments)

    def held_bytes(self) -> int:
        """The segments' sizes; O(segments)."""
        with self._lock:
            return sum(segment.size_bytes for segment in self._segments.values())

    def segment(self, name: str) -> Segment:
        """The segment called `name`, empty if it was unknown."""
        with self._lock:
            return self._segments.setdefault(name, Segment(name))

    def note(self, segment: Segment, entries: Iterable[Entry], changes: Changes) -> None:
        """Take over what the next entries of `segment` say."""
        with self._lock:
            for entry in entries:
                if entry.header.kind is EntryKind.PAGE:
                    self._note_page(segment, entry, changes)
                else:
                    self._note_drop(segment, entry.header.key, changes)

    def forget(self, key: bytes, location: Location) -> bool:
        """Hold `key` no longer, if it still stands at `location`."""
        with self._lock:
            is_there = self._locations.get(key) is location
            if is_there:
                del self._locations[key]
            return is_there

    def discard(self, key: bytes) -> None:
        """Hold `key` no longer, wherever it stands."""
        with self._lock:
            self._locations.pop(key, None)

    def remove_segment(self, segment: Segment, changes: Changes) -> None:
        """Hold `segment` no longer, nor what stands there."""
        with self._lock:
            if self._segments.pop(segment.name, None) is None:
                return
            self.entries -= len(segment.keys)
            for key in segment.keys:
                location = self._locations.get(key)
                if location is not None and location.segment is segment:
                    del self._locations[key]
                    changes.add_lost(key)

    def _note_page(self, segment: Segment, entry: Entry, changes: Changes) -> None:
        key = entry.header.key
        known = self._locations.get(key)
        self.entries += 1
        location = segment.add(entry)
        if known is None:
            changes.add_found(key, location)
        elif known.segment.name > segment.name:
            return
        self._locations[key] = location

    def _note_drop(self, segment: Segment, key: bytes, changes: Changes) -> None:
        known = self._locations.get(key)
        if known is not None and known.segment.name <= segment.name:
            del self._locations[key]
            changes.add_lost(key)
