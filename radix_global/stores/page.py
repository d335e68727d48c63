"""How a page stands in a segment: a header of HEADER_BYTES bytes, then the payload.

     0        8     10    12     16          32       40              56         64
     | magic  | ver | kind| zero | key       | length | payload check | own check | payload …

Numbers are little-endian. The payload check is xxh3_128 of the payload; the own check is xxh3_64
of the header's first 56 bytes, so that a scan may trust a header without reading its payload.
"""

from __future__ import annotations

import dataclasses
import struct
from enum import IntEnum, StrEnum

import xxhash

from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.stores.store import ReadOutcome

HEADER_BYTES = 64
MAGIC = b"\x89BANA\r\n\x1a"
VERSION = 1
_FIELDS = struct.Struct(f"<8sHH4x{KEY_BYTES}sQ16s")
_UNWRITTEN = bytes(HEADER_BYTES)


class EntryKind(IntEnum):
    """What an entry says of its key."""

    PAGE = 1
    DROPPED = 2  # copies before this entry no longer count; no payload


_KINDS = frozenset(EntryKind)


class HeaderFault(StrEnum):
    """Why HEADER_BYTES bytes are no header."""

    UNWRITTEN = "unwritten"
    DAMAGED = "damaged"
    WRONG_VERSION = "wrong_version"


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """What a header says."""

    kind: EntryKind
    key: bytes
    length_bytes: int
    payload_check: bytes


def check_payload(payload: memoryview) -> bytes:
    """The checksum of a payload; above 64 KiB the GIL is released."""
    digest: bytes = xxhash.xxh3_128_digest(payload)
    return digest


def page_header(key: bytes, payload: memoryview) -> Header:
    """The header that belongs before `payload`."""
    return Header(EntryKind.PAGE, key, payload.nbytes, check_payload(payload))


def drop_header(key: bytes) -> Header:
    """The entry after which earlier copies of `key` no longer count."""
    return Header(EntryKind.DROPPED, key, 0, bytes(16))


def pack_header(header: Header) -> bytes:
    """`header` as it is written."""
    return _pack(header.kind, header.key, header.length_bytes, header.payload_check)


def parse_header(raw: bytes | bytearray) -> Header | HeaderFault:
    """What HEADER_BYTES untrusted bytes say, or why they say nothing."""
    if raw == _UNWRITTEN:
        return HeaderFault.UNWRITTEN
    magic, version, kind, key, length_bytes, payload_check = _FIELDS.unpack_from(raw)
    if magic != MAGIC:
        return HeaderFault.DAMAGED
    if version != VERSION:
        return HeaderFault.WRONG_VERSION
    if raw[_FIELDS.size :] != _own_check(raw[: _FIELDS.size]) or kind not in _KINDS:
        return HeaderFault.DAMAGED
    return Header(EntryKind(kind), key, length_bytes, payload_check)


def judge_page(raw: bytes | bytearray, key: bytes, payload: memoryview) -> ReadOutcome:
    """READ if `raw` is, byte for byte, the header of `payload` under `key`, else CORRUPT."""
    expected = _pack(EntryKind.PAGE, key, payload.nbytes, check_payload(payload))
    return ReadOutcome.READ if raw == expected else ReadOutcome.CORRUPT


def _pack(kind: EntryKind, key: bytes, length_bytes: int, payload_check: bytes) -> bytes:
    fields = _FIELDS.pack(MAGIC, VERSION, kind, key, length_bytes, payload_check)
    return fields + _own_check(fields)


def _own_check(fields: bytes | bytearray) -> bytes:
    digest: bytes = xxhash.xxh3_64_digest(fields)
    return digest
