"""A store of objects that others run is believed in nothing."""

from __future__ import annotations

import pytest

from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.stores.page import HEADER_BYTES, pack_header, pack_origin, page_header
from bana.radix_global.stores.remote import RemoteOptions, RemoteStore, name_object
from bana.radix_global.stores.store import PageOrigin, ReadOutcome, Write, WriteOutcome
from bana.slo.clock import ManualClock
from bana.slo.errors import ConfigError

ORIGIN = PageOrigin(b"", 7)
PAGE = bytes(range(250)) * 4


class Pool:
    """What several hosts put there, and what befalls the next calls."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.fault: ReadOutcome | WriteOutcome | None = None
        self.closed = 0

    def put(self, name: str, header: bytes, payload: memoryview) -> WriteOutcome:
        if isinstance(self.fault, WriteOutcome):
            return self.fault
        # As Mooncake does: what is there stays, whatever it holds, and that is a success.
        self.held.setdefault(name, header + bytes(payload))
        return WriteOutcome.WRITTEN

    def get(self, name: str, header: memoryview, payload: memoryview) -> ReadOutcome:
        if isinstance(self.fault, ReadOutcome):
            return self.fault
        found = self.held.get(name)
        if found is None:
            return ReadOutcome.MISSING
        if len(found) != len(header) + len(payload):
            return ReadOutcome.SHORT
        header[:], payload[:] = found[:HEADER_BYTES], found[HEADER_BYTES:]
        return ReadOutcome.READ

    def remove(self, name: str) -> WriteOutcome:
        if isinstance(self.fault, WriteOutcome):
            return self.fault
        found = self.held.pop(name, None)
        return WriteOutcome.MISSING if found is None else WriteOutcome.DROPPED

    def counts(self) -> dict[str, int]:
        return {"late_calls": 3}

    def close(self) -> None:
        self.closed += 1


def key_of(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "big")


def build(pool: Pool, **bounds: int) -> RemoteStore:
    return RemoteStore(pool, RemoteOptions(**{"capacity_bytes": 10_000, **bounds}), ManualClock())


def read(store: RemoteStore, number: int) -> tuple[ReadOutcome, bytes]:
    target = bytearray(len(PAGE))
    return store.read(key_of(number), memoryview(target)), bytes(target)


def damage_payload(raw: bytes) -> bytes:
    return raw[:-1] + bytes([raw[-1] ^ 1])


def damage_header(raw: bytes) -> bytes:
    return raw[:20] + bytes([raw[20] ^ 1]) + raw[21:]


def be_another_page(raw: bytes) -> bytes:
    header = page_header(key_of(9), pack_origin(key_of(9), ORIGIN), memoryview(raw)[HEADER_BYTES:])
    return pack_header(header) + raw[HEADER_BYTES:]


def be_no_page(raw: bytes) -> bytes:
    return bytes(len(raw))


@pytest.mark.parametrize(
    "forge", [damage_payload, damage_header, be_another_page, be_no_page], ids=lambda f: f.__name__
)
def test_what_is_not_the_page_is_corrupt_and_makes_way_for_it(forge: object) -> None:
    pool = Pool()
    store = build(pool)
    store.put(key_of(1), PAGE, ORIGIN)
    assert callable(forge)
    pool.held[name_object(key_of(1))] = forge(pool.held[name_object(key_of(1))])
    assert read(store, 1)[0] is ReadOutcome.CORRUPT
    assert not store.holds(key_of(1))
    assert store.stats().counts["corrupt_pages"] == 1
    assert store.put(key_of(1), PAGE, ORIGIN).outcome is WriteOutcome.WRITTEN
    assert read(store, 1) == (ReadOutcome.READ, PAGE)


def test_an_object_of_another_size_is_short_and_makes_way() -> None:
    pool = Pool()
    store = build(pool)
    store.put(key_of(1), PAGE, ORIGIN)
    pool.held[name_object(key_of(1))] += b"more"
    assert read(store, 1)[0] is ReadOutcome.SHORT
    assert pool.held == {}
    assert not store.holds(key_of(1))


def test_what_the_pool_has_evicted_is_told_by_the_read_and_the_next_refresh() -> None:
    pool = Pool()
    store = build(pool)
    store.put(key_of(1), PAGE, ORIGIN)
    pool.held.clear()
    assert read(store, 1)[0] is ReadOutcome.MISSING
    assert (store.holds(key_of(1)), store.stats().held_bytes) == (False, 0)
    counts = store.stats().counts
    assert (counts["missing_pages"], counts["late_calls"]) == (1, 3)
    # Again, to whoever did not wait for the end of the read.
    assert store.refresh().lost == (key_of(1),)
    assert store.refresh().lost == ()


@pytest.mark.parametrize("fault", [ReadOutcome.LATE, ReadOutcome.FAILED])
def test_a_pool_out_of_reach_costs_no_page_its_place(fault: ReadOutcome) -> None:
    pool = Pool()
    store = build(pool)
    store.put(key_of(1), PAGE, ORIGIN)
    pool.fault = fault
    assert read(store, 1)[0] is fault
    pool.fault = None
    assert read(store, 1) == (ReadOutcome.READ, PAGE)


@pytest.mark.parametrize("fault", [WriteOutcome.FULL, WriteOutcome.LATE, WriteOutcome.FAILED])
def test_what_could_not_be_put_is_not_held_and_what_could_not_be_removed_neither(
    fault: WriteOutcome,
) -> None:
    pool = Pool()
    store = build(pool)
    store.put(key_of(1), PAGE, ORIGIN)
    pool.fault = fault
    assert store.put(key_of(2), PAGE, ORIGIN) == Write(fault)
    assert store.drop(key_of(1)) == Write(fault)
    assert store.pages() == []


def test_each_host_knows_its_own_pages_and_writes_what_the_other_wrote_at_once() -> None:
    pool = Pool()
    one, two = build(pool), build(pool)
    one.put(key_of(1), PAGE, ORIGIN)
    assert two.refresh().found == ()
    assert read(two, 1)[0] is ReadOutcome.MISSING
    assert two.put(key_of(1), PAGE, PageOrigin(key_of(8), 7)).outcome is WriteOutcome.WRITTEN
    assert read(two, 1) == (ReadOutcome.READ, PAGE)
    assert len(pool.held) == 1


@pytest.mark.parametrize("bounds", [{"capacity_bytes": 2 * len(PAGE)}, {"max_pages": 2}])
def test_beyond_its_bounds_the_least_recently_read_is_forgotten_here_only(
    bounds: dict[str, int],
) -> None:
    pool = Pool()
    store = build(pool, **bounds)
    for number in (1, 2):
        store.put(key_of(number), PAGE, ORIGIN)
    read(store, 1)
    assert store.put(key_of(3), PAGE, ORIGIN) == Write(WriteOutcome.WRITTEN, (key_of(2),))
    assert {page.key for page in store.pages()} == {key_of(1), key_of(3)}
    assert name_object(key_of(2)) in pool.held
    assert store.stats().counts["forgotten_pages"] == 1


def test_closing_leaves_the_objects_to_others() -> None:
    pool = Pool()
    store = build(pool)
    store.put(key_of(1), PAGE, ORIGIN)
    store.close()
    store.close()
    assert (pool.closed, len(pool.held)) == (1, 1)


@pytest.mark.parametrize("name", ["capacity_bytes", "max_pages"])
def test_bounds_that_hold_nothing_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        build(Pool(), **{name: 0})
