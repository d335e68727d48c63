"""Where slots stand in the arena's file, and what its header is trusted for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.radix_global.arena_layout import (
    ALIGN_BYTES,
    HEAD_BYTES,
    HEADER_BYTES,
    MAX_EPOCH,
    MAX_SLOT_BYTES,
    MAX_SLOTS,
    REGION_BYTES,
    ArenaHeader,
    ArenaLayout,
    fit_layout,
    pack_header,
    parse_header,
)
from bana.slo.errors import ConfigError

LAYOUTS = st.builds(ArenaLayout, st.integers(1, MAX_SLOTS), st.integers(1, MAX_SLOT_BYTES))
HEADERS = st.builds(ArenaHeader, LAYOUTS, st.integers(0, MAX_EPOCH))


@given(LAYOUTS)
def test_regions_are_aligned_and_do_not_overlap(layout: ArenaLayout) -> None:
    assert layout.slots_at % REGION_BYTES == 0
    assert layout.slots_at >= HEAD_BYTES + 8 * layout.slots
    assert layout.stride_bytes % ALIGN_BYTES == 0
    assert 0 <= layout.stride_bytes - layout.slot_bytes < ALIGN_BYTES
    assert layout.file_bytes == layout.slots_at + layout.slots * layout.stride_bytes


@given(st.integers(0, 2**44), st.integers(1, 2**24))
def test_as_many_slots_as_fit(arena_bytes: int, slot_bytes: int) -> None:
    if ArenaLayout(1, slot_bytes).file_bytes > arena_bytes:
        with pytest.raises(ConfigError, match="allowed: >="):
            fit_layout(arena_bytes, slot_bytes)
        return
    layout = fit_layout(arena_bytes, slot_bytes)
    assert layout.slot_bytes == slot_bytes
    assert layout.file_bytes <= arena_bytes
    # The regions' rounding may cost a few slots of the smallest kind.
    more = layout.slots + 1 + REGION_BYTES // layout.stride_bytes
    assert layout.slots == MAX_SLOTS or ArenaLayout(more, slot_bytes).file_bytes > arena_bytes


@given(HEADERS)
def test_a_header_survives(header: ArenaHeader) -> None:
    raw = pack_header(header)
    assert len(raw) == HEADER_BYTES
    assert parse_header(raw + b"what follows") == header


@given(HEADERS, st.integers(0, HEADER_BYTES - 1), st.integers(1, 255))
def test_a_changed_byte_anywhere_is_noticed(header: ArenaHeader, at: int, change: int) -> None:
    raw = bytearray(pack_header(header))
    raw[at] ^= change
    with pytest.raises(ConfigError, match=r"begin as an arena|has version|damaged"):
        parse_header(bytes(raw))


@pytest.mark.parametrize("raw", [b"", bytes(HEADER_BYTES), b"\x7fELF" + bytes(200)])
def test_other_files_are_no_arena(raw: bytes) -> None:
    with pytest.raises(ConfigError, match="does not begin as an arena"):
        parse_header(raw)


def test_another_version_is_named() -> None:
    raw = bytearray(pack_header(ArenaHeader(ArenaLayout(1, 1), 1)))
    raw[8] = 2
    with pytest.raises(ConfigError, match="version 2, allowed: 1"):
        parse_header(bytes(raw))


@pytest.mark.parametrize(
    ("slots", "slot_bytes"), [(0, 1), (1, 0), (MAX_SLOTS + 1, 1), (1, MAX_SLOT_BYTES + 1)]
)
def test_no_such_layout(slots: int, slot_bytes: int) -> None:
    with pytest.raises(ConfigError, match=r"arena\.slot.*allowed"):
        ArenaLayout(slots, slot_bytes)


@pytest.mark.parametrize("slot", [-1, 3])
def test_no_such_slot(slot: int) -> None:
    with pytest.raises(ValueError, match=r"allowed: 0\.\.2"):
        ArenaLayout(3, 1).require_slot(slot)
