"""How a page stands in a segment: a header of HEADER_BYTES bytes, then the payload.

     0       8     10     12          16       32    48       56              72      120
     | magic | ver | kind | namespace | parent | key | length | payload check | zeros | own check |
                          |────── origin ──────|                                          128 ────|

Numbers are little-endian. The payload check is xxh3_128 of the payload; the own check is xxh3_64
of the header's first 120 bytes, so that a scan may trust a header without reading its payload.
Payloads of whole cache lines stay aligned to them, since the kernel copies others more slowly.
"""

from __future__ import annotations

import struct
from enum import IntEnum, StrEnum

import msgspec
import xxhash

from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.stores.store import PageOrigin, ReadOutcome

HEADER_BYTES = 128
ORIGIN_BYTES = 4 + KEY_BYTES
MAGIC = b"\x89BANA\r\n\x1a"
VERSION = 1
_FIELDS = struct.Struct(f"<8sHH{ORIGIN_BYTES}s{KEY_BYTES}sQ16s48x")
_ORIGIN = struct.Struct(f"<I{KEY_BYTES}s")
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


class Header(msgspec.Struct, frozen=True, gc=False):
    """What a header says; `origin` is packed."""

    kind: EntryKind
    origin: bytes
    key: bytes
    length_bytes: int
    payload_check: bytes


def check_payload(payload: memoryview) -> bytes:
    """The checksum of a payload; above 64 KiB the GIL is released."""
    digest: bytes = xxhash.xxh3_128_digest(payload)
    return digest


def pack_origin(key: bytes, origin: PageOrigin) -> bytes:
    """The origin of page `key` as it is written: its own key for no parent."""
    return _ORIGIN.pack(origin.namespace, origin.parent or key)


def parse_origin(key: bytes, packed: bytes) -> PageOrigin:
    """What ORIGIN_BYTES bytes say of page `key`; any are an origin."""
    namespace, parent = _ORIGIN.unpack(packed)
    return PageOrigin(b"" if parent == key else parent, namespace)


def page_header(key: bytes, origin: bytes, payload: memoryview) -> Header:
    """The header that belongs before `payload`."""
    return Header(EntryKind.PAGE, origin, key, payload.nbytes, check_payload(payload))


def drop_header(key: bytes) -> Header:
    """The entry after which earlier copies of `key` no longer count."""
    return Header(EntryKind.DROPPED, bytes(ORIGIN_BYTES), key, 0, bytes(16))


def pack_header(header: Header) -> bytes:
    """`header` as it is written."""
    fields = _FIELDS.pack(
        MAGIC,
        VERSION,
        header.kind,
        header.origin,
        header.key,
        header.length_bytes,
        header.payload_check,
    )
    return fields + _own_check(fields)


def parse_header(raw: bytes | bytearray) -> Header | HeaderFault:
    """What HEADER_BYTES untrusted bytes say, or why they say nothing."""
    if raw == _UNWRITTEN:
        return HeaderFault.UNWRITTEN
    magic, version, kind, origin, key, length_bytes, check = _FIELDS.unpack_from(raw)
    if magic != MAGIC:
        return HeaderFault.DAMAGED
    if version != VERSION:
        return HeaderFault.WRONG_VERSION
    if raw[_FIELDS.size :] != _own_check(raw[: _FIELDS.size]) or kind not in _KINDS:
        return HeaderFault.DAMAGED
    return Header(EntryKind(kind), origin, key, length_bytes, check)


def judge_page(
    raw: bytes | bytearray, key: bytes, origin: bytes, payload: memoryview
) -> ReadOutcome:
    """READ if `raw` is, byte for byte, the header of `payload` under `key`, else CORRUPT."""
    expected = pack_header(page_header(key, origin, payload))
    return ReadOutcome.READ if raw == expected else ReadOutcome.CORRUPT


def _own_check(fields: bytes | bytearray) -> bytes:
    digest: bytes = xxhash.xxh3_64_digest(fields)
    return digest
