"""What the writer is offered, and what it answers: one outcome for every tier of a page."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from bana.radix_global.pages import MAX_PAGE_BYTES, MAX_TIERS
from bana.radix_global.stores.store import PageOrigin, check_key
from bana.slo.errors import StoreError


class WriteJob(msgspec.Struct, frozen=True):
    """A page in `slot`, to be copied to the tiers of a mask.

    The slot must hold it unchanged until the page's last outcome.
    """

    key: bytes
    origin: PageOrigin
    slot: int
    size_bytes: int
    tiers: int

    def __post_init__(self) -> None:
        check_key(self.key)
        if not 0 < self.size_bytes <= MAX_PAGE_BYTES:
            raise StoreError(f"size_bytes {self.size_bytes}, allowed: 1..{MAX_PAGE_BYTES}")
        # Place 0 is the arena.
        if self.tiers & 1 or not 0 < self.tiers < 2 << MAX_TIERS:
            raise StoreError(f"tiers {self.tiers:#b}, allowed: bits 1..{MAX_TIERS}, at least one")


class WriteEnd(StrEnum):
    """What became of a page on one tier."""

    WRITTEN = "written"
    PRESENT = "present"
    FULL = "full"
    REFUSED = "refused"
    LATE = "late"
    FAILED = "failed"
    CROWDED_OUT = "crowded_out"  # never begun: the backlog was full, or it had waited too long


class PageWritten(msgspec.Struct, frozen=True):
    """The outcome of a page on `tier`, and the keys that the tier gave up for it.

    `is_last` says that none follows for the job: its slot is no longer read.
    """

    key: bytes
    slot: int
    tier: int
    end: WriteEnd
    lost: tuple[bytes, ...]
    is_last: bool


class WriteReport(msgspec.Struct, frozen=True):
    """One tier's writes, now and so far; `bandwidth_bytes_per_s` is None before the first.

    `outcomes` counts how they ended, those crowded out included.
    """

    tier: int
    bandwidth_bytes_per_s: float | None
    backlog_pages: int
    backlog_bytes: int
    writing_pages: int
    written_bytes: int
    outcomes: Mapping[str, int]
