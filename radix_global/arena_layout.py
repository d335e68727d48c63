"""How the arena's file is laid out: a header, a column of generations, the slots.

    0            64 Ki                          slots_at                                file_bytes
    | header     | generation 0 | 1 | 2 | …     | slot 0        | slot 1        | …     |
    | HEAD_BYTES | 8 bytes each, zeros behind   | stride_bytes, of which slot_bytes count |

Numbers are little-endian. The header: magic, version, zero, slots, slot_bytes, epoch, and xxh3_64
of all that. Regions start at multiples of 64 KiB, so that every kernel can map them apart.
"""

from __future__ import annotations

import struct

import msgspec
import xxhash

from bana.slo.errors import ConfigError

MAGIC = b"\x89BNA\r\n\x1a\n"
VERSION = 1
REGION_BYTES = 65_536
HEAD_BYTES = REGION_BYTES
ALIGN_BYTES = 4_096
GENERATION_BYTES = 8
MAX_SLOTS = 2**31 - 2
MAX_SLOT_BYTES = 2**31 - 1
MAX_EPOCH = 2**63 - 1
_FIELDS = struct.Struct("<8sHHIQQQ")
HEADER_BYTES = _FIELDS.size + 8


class ArenaLayout(msgspec.Struct, frozen=True):
    """How many slots of how many bytes; each starts at a multiple of ALIGN_BYTES."""

    slots: int
    slot_bytes: int

    def __post_init__(self) -> None:
        _require_within("slots", self.slots, MAX_SLOTS)
        _require_within("slot_bytes", self.slot_bytes, MAX_SLOT_BYTES)

    @property
    def stride_bytes(self) -> int:
        """From the start of one slot to the start of the next."""
        return _round_up(self.slot_bytes, ALIGN_BYTES)

    @property
    def slots_at(self) -> int:
        """Where slot 0 starts."""
        return _round_up(HEAD_BYTES + self.slots * GENERATION_BYTES, REGION_BYTES)

    @property
    def file_bytes(self) -> int:
        """The length of the whole file."""
        return self.slots_at + self.slots * self.stride_bytes

    def require_slot(self, slot: int) -> None:
        """ValueError unless there is such a slot."""
        if not 0 <= slot < self.slots:
            raise ValueError(f"slot {slot}, allowed: 0..{self.slots - 1}; ask the daemon for one")


class ArenaHeader(msgspec.Struct, frozen=True):
    """What the file says of itself; `epoch` names the daemon's life that made it."""

    layout: ArenaLayout
    epoch: int


def fit_layout(arena_bytes: int, slot_bytes: int) -> ArenaLayout:
    """The layout with the most slots whose file has at most `arena_bytes`."""
    _require_within("slot_bytes", slot_bytes, MAX_SLOT_BYTES)
    stride_bytes = _round_up(slot_bytes, ALIGN_BYTES)
    # A bound from above, which the rounding of the regions may still exceed.
    slots = min(MAX_SLOTS, (arena_bytes - HEAD_BYTES) // (stride_bytes + GENERATION_BYTES))
    while slots > 0 and ArenaLayout(slots, slot_bytes).file_bytes > arena_bytes:
        slots -= 1
    if slots < 1:
        least = ArenaLayout(1, slot_bytes).file_bytes
        raise ConfigError(
            f"arena of {arena_bytes} bytes for pages of {slot_bytes}, allowed: >= {least}; make it "
            "larger: it should hold thousands of pages"
        )
    return ArenaLayout(slots, slot_bytes)


def pack_header(header: ArenaHeader) -> bytes:
    """`header` as it is written."""
    layout = header.layout
    fields = _FIELDS.pack(MAGIC, VERSION, 0, 0, layout.slots, layout.slot_bytes, header.epoch)
    return fields + _check(fields)


def parse_header(raw: bytes) -> ArenaHeader:
    """What HEADER_BYTES untrusted bytes say; ConfigError says why they say nothing."""
    if len(raw) < HEADER_BYTES or raw[: len(MAGIC)] != MAGIC:
        raise ConfigError("it does not begin as an arena does")
    _, version, _, _, slots, slot_bytes, epoch = _FIELDS.unpack_from(raw)
    if version != VERSION:
        raise ConfigError(f"it has version {version}, allowed: {VERSION}")
    if raw[_FIELDS.size : HEADER_BYTES] != _check(raw[: _FIELDS.size]):
        raise ConfigError("its header is damaged")
    return ArenaHeader(ArenaLayout(slots, slot_bytes), epoch)


def _check(fields: bytes) -> bytes:
    digest: bytes = xxhash.xxh3_64_digest(fields)
    return digest


def _round_up(size_bytes: int, step_bytes: int) -> int:
    return -(-size_bytes // step_bytes) * step_bytes


def _require_within(name: str, value: int, high: int) -> None:
    if not 1 <= value <= high:
        raise ConfigError(f"arena.{name}={value}, allowed: 1..{high}; correct it")
