"""What the reader is asked for, and what it answers: one outcome for every page wanted."""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from bana.radix_global.pages import MAX_PAGE_BYTES, MAX_TIERS
from bana.radix_global.stores.store import ReadOutcome, check_key
from bana.slo.errors import StoreError


class PageWant(msgspec.Struct, frozen=True):
    """A page wanted in `slot`, which is the reader's until the outcome.

    `tiers` is the mask of the places that hold it, `due_s` when the most urgent request needs it
    (the order of reading), `position` its place in the prefix, `deadline_s` when it is given up.
    """

    key: bytes
    slot: int
    size_bytes: int
    tiers: int
    due_s: float
    position: int
    deadline_s: float

    def __post_init__(self) -> None:
        check_key(self.key)
        if not 0 < self.size_bytes <= MAX_PAGE_BYTES:
            raise StoreError(f"size_bytes {self.size_bytes}, allowed: 1..{MAX_PAGE_BYTES}")
        # Place 0 is the arena.
        if self.tiers & 1 or not 0 < self.tiers < 2 << MAX_TIERS:
            raise StoreError(f"tiers {self.tiers:#b}, allowed: bits 1..{MAX_TIERS}, at least one")
        if math.isnan(self.due_s) or not math.isfinite(self.deadline_s):
            raise StoreError(
                f"due_s {self.due_s} and deadline_s {self.deadline_s}, allowed: times, the "
                "deadline a finite one"
            )


class Wanted(StrEnum):
    """Whether the reader took a want."""

    TAKEN = "taken"
    KNOWN = "known"  # wanted already: its urgency and deadline were raised, the slot is not taken


class ReadEnd(StrEnum):
    """What became of a page wanted; the slot named with it holds the page after READ only."""

    READ = "read"
    FAILED = "failed"  # no tier gave it
    LATE = "late"  # its deadline passed
    CANCELLED = "cancelled"


class TierFailure(msgspec.Struct, frozen=True):
    """What a tier answered instead of the page."""

    tier: int
    outcome: ReadOutcome


class PageRead(msgspec.Struct, frozen=True):
    """The one outcome of a page wanted.

    `slot` is the caller's again, and nothing touches it any more. It is another one than was given
    where a read of the page is still under way into that one: the reader keeps it in exchange.
    `tier` is where the page came from, None unless READ.
    """

    key: bytes
    slot: int
    end: ReadEnd
    tier: int | None
    failures: tuple[TierFailure, ...]
