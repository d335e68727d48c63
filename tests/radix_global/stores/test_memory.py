"""A memory tier gives up what was used longest ago, and no more than it must."""

from __future__ import annotations

import pytest

from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.stores.memory import PAGE_OVERHEAD_BYTES, MemoryOptions, MemoryStore
from bana.radix_global.stores.store import PageOrigin, ReadOutcome, Write, WriteOutcome
from bana.slo.clock import ManualClock
from bana.slo.errors import ConfigError

PAGE_BYTES = 1_000
ORIGIN = PageOrigin(b"", 1)


def _key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "big")


def _store(pages: int) -> MemoryStore:
    store = MemoryStore(MemoryOptions(pages * (PAGE_BYTES + PAGE_OVERHEAD_BYTES)), ManualClock())
    for number in range(pages):
        assert store.put(_key(number), bytes(PAGE_BYTES), ORIGIN) == Write(WriteOutcome.WRITTEN)
    return store


def test_the_least_recently_read_page_goes_first() -> None:
    store = _store(3)
    assert store.read(_key(0), memoryview(bytearray(PAGE_BYTES))) is ReadOutcome.READ
    write = store.put(_key(3), bytes(PAGE_BYTES), ORIGIN)
    assert write == Write(WriteOutcome.WRITTEN, (_key(1),))
    assert [page.key for page in store.pages()] == [_key(2), _key(0), _key(3)]


def test_a_large_page_takes_the_place_of_several_small_ones() -> None:
    store = _store(4)
    write = store.put(_key(9), bytes(2 * PAGE_BYTES), ORIGIN)
    assert write.lost == (_key(0), _key(1))
    assert store.stats().counts == {"evicted_pages": 2}


def test_small_pages_are_not_free() -> None:
    store = MemoryStore(MemoryOptions(10 * PAGE_OVERHEAD_BYTES), ManualClock())
    for number in range(1_000):
        store.put(_key(number), b"x", ORIGIN)
    assert store.stats().pages == 9
    assert store.stats().held_bytes == 9 * (1 + PAGE_OVERHEAD_BYTES)


def test_dropped_pages_give_their_room_back() -> None:
    store = _store(2)
    store.drop(_key(0))
    assert store.stats().held_bytes == PAGE_BYTES + PAGE_OVERHEAD_BYTES
    assert store.put(_key(5), bytes(PAGE_BYTES), ORIGIN).lost == ()


def test_a_capacity_without_room_for_a_page_is_refused() -> None:
    with pytest.raises(ConfigError, match="allowed: >"):
        MemoryOptions(PAGE_OVERHEAD_BYTES)
