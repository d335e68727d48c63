"""What a tier of storage does with pages, and what it answers.

A page is a payload under a key of KEY_BYTES bytes that names its content: whoever writes a key
writes the same bytes, so that writing twice is idempotent and pages never change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from typing import Protocol, TypeAlias

import msgspec

from bana.radix_global.keys import KEY_BYTES

Payload: TypeAlias = bytes | bytearray | memoryview


class ReadOutcome(StrEnum):
    """What became of one read; the target holds the page after READ, and garbage otherwise."""

    READ = "read"
    MISSING = "missing"  # the tier does not hold it, or no longer does
    WRONG_LENGTH = "wrong_length"  # held, but not as long as the target
    SHORT = "short"  # the tier ended before the page did
    CORRUPT = "corrupt"  # the bytes are not those that were written
    LATE = "late"  # the storage gave up waiting
    FAILED = "failed"  # any other fault, or the store is closed


class WriteOutcome(StrEnum):
    """What became of one put or drop."""

    WRITTEN = "written"
    PRESENT = "present"  # held already, nothing was written
    DROPPED = "dropped"
    MISSING = "missing"  # nothing to drop
    FULL = "full"  # no room on the storage, or none that may be taken from others
    REFUSED = "refused"  # empty, or longer than this tier takes
    LATE = "late"
    FAILED = "failed"


class RefreshOutcome(StrEnum):
    """Whether a refresh has seen everything that the storage holds."""

    WHOLE = "whole"
    PARTIAL = "partial"  # its bound was reached: call again to go on
    FAILED = "failed"


class PageOrigin(msgspec.Struct, frozen=True, gc=False):
    """Where a page belongs; ValueError where it cannot be written.

    `parent` is the key of the page before, empty for the first page of a prefix. `namespace` is the
    tag of what the page was made under, 32 bits for listing and clearing: it proves nothing.
    """

    parent: bytes
    namespace: int

    def __post_init__(self) -> None:
        if self.parent:
            check_key(self.parent)
        if not 0 <= self.namespace < 2**32:
            raise ValueError(f"namespace {self.namespace}, allowed: 32 bits")


class HeldPage(msgspec.Struct, frozen=True, gc=False):
    """One page on a tier; `size_bytes` is the length of its payload."""

    key: bytes
    origin: PageOrigin
    size_bytes: int


class Moment(msgspec.Struct, frozen=True):
    """One point in time: on the clock of this process, and as files are dated."""

    clock_s: float
    date_s: float


@dataclasses.dataclass(frozen=True)
class Write:
    """The outcome of a put or drop, and the other keys that the tier gave up for it."""

    outcome: WriteOutcome
    lost: tuple[bytes, ...] = ()


@dataclasses.dataclass(frozen=True)
class Refresh:
    """Which pages the tier was found to hold, or no longer to hold, since the last refresh."""

    outcome: RefreshOutcome
    found: tuple[HeldPage, ...] = ()
    lost: tuple[bytes, ...] = ()


@dataclasses.dataclass(frozen=True)
class StoreStats:
    """How much a tier holds and may hold; `counts` are the kind's own, by name."""

    pages: int
    held_bytes: int
    capacity_bytes: int
    counts: Mapping[str, int]


class Store(Protocol):
    """One tier. Expected faults are outcomes; every method may be called from any thread.

    Reads run side by side, each as long as its storage takes: a stalled one delays no other.
    Writers take turns. READ is answered only for a verified page: its key and length, and that the
    payload is what was put. Every loss is told: by a read that was MISSING, by one that was SHORT
    or CORRUPT unless `holds` still says otherwise, or among the keys of a Write or Refresh. What a
    read told of is among those of the next Refresh too. A key of another length than KEY_BYTES
    raises ValueError.
    """

    def put(self, key: bytes, payload: Payload, origin: PageOrigin) -> Write:
        """Hold a page of its own copy of `payload`; visible to every reader once WRITTEN."""
        ...

    def read(self, key: bytes, target: memoryview) -> ReadOutcome:
        """Fill the writable, contiguous `target` with the page."""
        ...

    def holds(self, key: bytes) -> bool:
        """Whether the page is believed to be here; asks no storage."""
        ...

    def pages(self) -> list[HeldPage]:
        """Every page for which `holds` is true, in no order of prefixes; O(pages)."""
        ...

    def pages_before(self, moment: Moment) -> list[HeldPage]:
        """Those pages that are in their place since before `moment`, as far as the tier can tell.

        What it cannot date is not among them.
        """
        ...

    def drop(self, key: bytes) -> Write:
        """Give the page up; DROPPED or MISSING, and it is no longer held whatever the outcome."""
        ...

    def drop_many(self, keys: Collection[bytes]) -> Iterator[Write]:
        """Give pages up as `drop` would, at less than its price for each where that is safe.

        Here `lost` are all keys given up; those that were missing are not mentioned. Work is done
        as far as the iterator is followed.
        """
        ...

    def refresh(self) -> Refresh:
        """Look, within a bound, for what others wrote to or took from the same storage."""
        ...

    def stats(self) -> StoreStats: ...

    def close(self) -> None:
        """Give files and memory back; idempotent, and every later operation is FAILED."""
        ...


def check_key(key: bytes) -> None:
    """Raise ValueError unless `key` has KEY_BYTES bytes."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes, allowed: {KEY_BYTES}; hash it first")


def view_bytes(payload: Payload) -> memoryview:
    """`payload` as bytes, not copied; what is not contiguous raises TypeError."""
    return memoryview(payload).cast("B")
