"""Which entries a segment holds: read from its headers, one after the other."""

from __future__ import annotations

import dataclasses
import os
from enum import StrEnum

import msgspec

from bana.radix_global.stores.page import (
    HEADER_BYTES,
    EntryKind,
    Header,
    HeaderFault,
    parse_header,
)


class ScanEnd(StrEnum):
    """Why a scan went no further."""

    WHOLE = "whole"  # the segment ends here
    PAUSED = "paused"  # the bound was reached
    UNFINISHED = "unfinished"  # the next entry is not whole: being written, or torn
    DAMAGED = "damaged"
    WRONG_VERSION = "wrong_version"


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One entry and where its header stands."""

    header: Header
    offset: int


@dataclasses.dataclass(frozen=True)
class Scan:
    """The entries found, where the next one would stand, and why the scan ended there."""

    entries: tuple[Entry, ...]
    next_offset: int
    end: ScanEnd


def scan_segment(fd: int, offset: int, size_bytes: int, limit: int) -> Scan:
    """At most `limit` entries from `offset` on, in a segment seen to have `size_bytes`.

    Payloads are not read: O(entries), whatever the lengths say. Entries follow each other without
    gaps, so that a bad header hides what is behind it, and no payload is ever taken for a header.
    """
    entries: list[Entry] = []
    while True:
        if len(entries) == limit:
            return Scan(tuple(entries), offset, ScanEnd.PAUSED)
        found = _read_entry(fd, offset, size_bytes)
        if isinstance(found, ScanEnd):
            return Scan(tuple(entries), offset, found)
        entries.append(Entry(found, offset))
        offset += HEADER_BYTES + found.length_bytes


def _read_entry(fd: int, offset: int, size_bytes: int) -> Header | ScanEnd:
    if offset >= size_bytes:
        return ScanEnd.WHOLE
    raw = os.pread(fd, HEADER_BYTES, offset)
    if len(raw) < HEADER_BYTES:
        return ScanEnd.UNFINISHED
    header = parse_header(raw)
    if isinstance(header, HeaderFault):
        return _FAULT_ENDS[header]
    if (header.length_bytes == 0) != (header.kind is EntryKind.DROPPED):
        return ScanEnd.DAMAGED
    end = offset + HEADER_BYTES + header.length_bytes
    return header if end <= size_bytes else ScanEnd.UNFINISHED


_FAULT_ENDS = {
    HeaderFault.UNWRITTEN: ScanEnd.UNFINISHED,
    HeaderFault.DAMAGED: ScanEnd.DAMAGED,
    HeaderFault.WRONG_VERSION: ScanEnd.WRONG_VERSION,
}
