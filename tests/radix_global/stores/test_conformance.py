"""The law of stores, held against every kind and every decorated kind."""

from __future__ import annotations

import array
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.stores.directory import DirectoryStore
from bana.radix_global.stores.faulty import Fault, FaultOptions, FaultyStore
from bana.radix_global.stores.memory import MemoryOptions, MemoryStore
from bana.radix_global.stores.options import DirectoryOptions
from bana.radix_global.stores.remote import RemoteOptions, RemoteStore
from bana.radix_global.stores.store import (
    HeldPage,
    PageOrigin,
    ReadOutcome,
    RefreshOutcome,
    Store,
    WriteOutcome,
)
from bana.radix_global.stores.throttled import Throttle, ThrottledStore
from bana.slo.clock import ManualClock

CAPACITY_BYTES = 12_288


class PassingClock:
    """Time that passes only by being waited for."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        return self._now_s

    def sleep(self, duration_s: float) -> None:
        self._now_s += duration_s


def _memory(_: Path) -> Store:
    return MemoryStore(MemoryOptions(CAPACITY_BYTES), ManualClock())


def _directory(folder: Path) -> Store:
    options = DirectoryOptions(CAPACITY_BYTES, segment_bytes=2_048, scan_pages=3)
    return DirectoryStore(folder / "tier", options, Random(1))


class Objects:
    """A store of objects in a dictionary, as other hosts would run one."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def put(self, name: str, header: bytes, payload: memoryview) -> WriteOutcome:
        self.held.setdefault(name, header + bytes(payload))
        return WriteOutcome.WRITTEN

    def get(self, name: str, header: memoryview, payload: memoryview) -> ReadOutcome:
        found = self.held.get(name)
        if found is None:
            return ReadOutcome.MISSING
        if len(found) != len(header) + len(payload):
            return ReadOutcome.SHORT
        header[:], payload[:] = found[: len(header)], found[len(header) :]
        return ReadOutcome.READ

    def remove(self, name: str) -> WriteOutcome:
        found = self.held.pop(name, None)
        return WriteOutcome.MISSING if found is None else WriteOutcome.DROPPED

    def counts(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self.held.clear()


def _remote(_: Path) -> Store:
    return RemoteStore(Objects(), RemoteOptions(CAPACITY_BYTES // 2), ManualClock())


def _throttled(inner: Store) -> Store:
    return ThrottledStore(inner, Throttle(1e6, 0.01, 0.01), PassingClock(), Random(2))


def _faulty(inner: Store, share: float) -> Store:
    options = FaultOptions(dict.fromkeys(Fault, share), stall_s=30)
    return FaultyStore(inner, options, PassingClock(), Random(3))


KINDS: dict[str, Callable[[Path], Store]] = {
    "memory": _memory,
    "directory": _directory,
    "remote": _remote,
    "throttled memory": lambda folder: _throttled(_memory(folder)),
    "throttled directory": lambda folder: _throttled(_directory(folder)),
    "faultless memory": lambda folder: _faulty(_memory(folder), 0),
    "throttled faultless directory": lambda folder: _throttled(_faulty(_directory(folder), 0)),
}
FAULTY_KINDS: dict[str, Callable[[Path], Store]] = {
    "faulty memory": lambda folder: _faulty(_memory(folder), 0.1),
    "faulty remote": lambda folder: _faulty(_remote(folder), 0.1),
    "faulty throttled directory": lambda folder: _faulty(_throttled(_directory(folder)), 0.1),
}


@contextmanager
def _opened(kind: str) -> Iterator[Store]:
    with tempfile.TemporaryDirectory() as name:
        store = {**KINDS, **FAULTY_KINDS}[kind](Path(name))
        try:
            yield store
        finally:
            store.close()


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with _opened(str(request.param)) as opened:
        yield opened


def _key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "big")


def _origin(number: int) -> PageOrigin:
    """Every fifth page is a first one."""
    return PageOrigin(_key(number + 1) if number % 5 else b"", 2**32 - 1 - number)


def _held(numbers: Iterable[int]) -> set[HeldPage]:
    return {HeldPage(_key(n), _origin(n), len(_page(n))) for n in numbers}


def _page(number: int) -> bytes:
    """Pages of different lengths, some alike in length, none alike in content."""
    return Random(number).randbytes(1 + number * 97 % 400)


def _read(store: Store, number: int) -> tuple[ReadOutcome, bytes]:
    target = bytearray(len(_page(number)))
    return store.read(_key(number), memoryview(target)), bytes(target)


def test_a_page_is_read_as_it_was_put_and_only_into_the_target(store: Store) -> None:
    page = _page(5)
    assert store.put(_key(5), page, _origin(5)).outcome is WriteOutcome.WRITTEN
    around = bytearray(b"\xaa" * (len(page) + 20))
    assert store.read(_key(5), memoryview(around)[10:-10]) is ReadOutcome.READ
    assert around == b"\xaa" * 10 + page + b"\xaa" * 10


def test_what_was_not_put_is_missing(store: Store) -> None:
    assert _read(store, 1)[0] is ReadOutcome.MISSING
    assert store.drop(_key(1)).outcome is WriteOutcome.MISSING
    assert not store.holds(_key(1))
    assert store.pages() == []
    assert store.stats().pages == 0


def test_putting_twice_is_told_and_changes_nothing(store: Store) -> None:
    store.put(_key(1), _page(1), _origin(1))
    before = store.stats()
    assert store.put(_key(1), _page(1), _origin(1)).outcome is WriteOutcome.PRESENT
    assert store.stats() == before


def test_a_store_keeps_its_own_copy(store: Store) -> None:
    numbers = array.array("d", [1.5, 2.5])
    store.put(_key(1), memoryview(numbers), _origin(1))
    written = numbers.tobytes()
    numbers[0] = 7.0
    target = bytearray(len(written))
    assert store.read(_key(1), memoryview(target)) is ReadOutcome.READ
    assert bytes(target) == written


def test_a_target_of_another_length_is_told_and_the_page_stays(store: Store) -> None:
    store.put(_key(3), _page(3), _origin(3))
    for length in (1, len(_page(3)) - 1, len(_page(3)) + 1):
        target = bytearray(length)
        assert store.read(_key(3), memoryview(target)) is ReadOutcome.WRONG_LENGTH
        assert target == bytes(length)
    assert _read(store, 3) == (ReadOutcome.READ, _page(3))


def test_a_dropped_page_is_gone_and_may_come_again(store: Store) -> None:
    store.put(_key(1), _page(1), _origin(1))
    store.put(_key(2), _page(2), _origin(2))
    assert store.drop(_key(1)).outcome is WriteOutcome.DROPPED
    assert _read(store, 1)[0] is ReadOutcome.MISSING
    assert set(store.pages()) == _held([2])
    assert store.put(_key(1), _page(1), _origin(1)).outcome is WriteOutcome.WRITTEN
    assert _read(store, 1) == (ReadOutcome.READ, _page(1))


@pytest.mark.parametrize("payload", [b"", bytes(CAPACITY_BYTES)])
def test_a_page_of_no_possible_size_is_refused(store: Store, payload: bytes) -> None:
    store.put(_key(1), _page(1), _origin(1))
    assert store.put(_key(2), payload, _origin(2)).outcome is WriteOutcome.REFUSED
    assert set(store.pages()) == _held([1])


@pytest.mark.parametrize("key", [b"", bytes(KEY_BYTES - 1), bytes(KEY_BYTES + 1)])
def test_a_key_of_another_length_is_an_error_of_the_caller(store: Store, key: bytes) -> None:
    with pytest.raises(ValueError, match="key of"):
        store.put(key, b"page", _origin(1))
    with pytest.raises(ValueError, match="key of"):
        store.read(key, memoryview(bytearray(4)))
    with pytest.raises(ValueError, match="key of"):
        store.drop(key)


@pytest.mark.parametrize(
    ("parent", "namespace"),
    [(bytes(KEY_BYTES - 1), 0), (bytes(KEY_BYTES + 1), 0), (b"", -1), (b"", 2**32)],
)
def test_an_origin_that_no_file_could_keep_is_refused(parent: bytes, namespace: int) -> None:
    with pytest.raises(ValueError, match="allowed"):
        PageOrigin(parent, namespace)


def test_after_closing_everything_fails(store: Store) -> None:
    store.put(_key(1), _page(1), _origin(1))
    store.close()
    store.close()
    assert _read(store, 1)[0] is ReadOutcome.FAILED
    for number in (1, 2):
        write = store.put(_key(number), _page(number), _origin(number))
        assert write.outcome is WriteOutcome.FAILED
    assert store.drop(_key(1)).outcome is WriteOutcome.FAILED
    assert store.refresh().outcome is RefreshOutcome.FAILED


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "read", "drop", "refresh"]), st.integers(0, 60)),
    min_size=20,
    max_size=120,
)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=30)
@given(steps=STEPS)
def test_it_does_what_a_dict_does_but_for_the_losses_it_tells(
    kind: str, steps: list[tuple[str, int]]
) -> None:
    held: set[int] = set()
    with _opened(kind) as store:
        for step, number in steps:
            if step == "put":
                write = store.put(_key(number), _page(number), _origin(number))
                expected = WriteOutcome.PRESENT if number in held else WriteOutcome.WRITTEN
                assert write.outcome is expected
                held = (held | {number}) - {int.from_bytes(key, "big") for key in write.lost}
            elif step == "drop":
                write = store.drop(_key(number))
                expected = WriteOutcome.DROPPED if number in held else WriteOutcome.MISSING
                assert write.outcome is expected
                held -= {number} | {int.from_bytes(key, "big") for key in write.lost}
            elif step == "refresh":
                refresh = store.refresh()
                assert (refresh.found, refresh.lost) == ((), ())
            else:
                outcome, content = _read(store, number)
                assert outcome is (ReadOutcome.READ if number in held else ReadOutcome.MISSING)
                assert outcome is ReadOutcome.MISSING or content == _page(number)
            assert set(store.pages()) == _held(held)
            assert store.stats().held_bytes <= store.stats().capacity_bytes


@pytest.mark.parametrize("kind", [*KINDS, *FAULTY_KINDS])
def test_readers_beside_a_writer_that_evicts_get_right_pages_or_none(kind: str) -> None:
    wrong: list[int] = []
    read_pages = [0] * 3
    done = threading.Event()

    def read_on(reader: int) -> None:
        rng = Random(reader)
        while not done.is_set():
            number = rng.randrange(120)
            outcome, content = _read(store, number)
            if outcome is ReadOutcome.READ:
                read_pages[reader] += 1
                if content != _page(number):
                    wrong.append(number)

    with _opened(kind) as store:
        readers = [threading.Thread(target=read_on, args=(reader,)) for reader in range(3)]
        for thread in readers:
            thread.start()
        rng = Random(9)
        for _ in range(1_500):
            store.put(_key(number := rng.randrange(120)), _page(number), _origin(number))
        # Whatever is held now stays, so that every reader comes to read something.
        while min(read_pages) == 0:
            done.wait(0.01)
        done.set()
        for thread in readers:
            thread.join()
    assert wrong == []


@pytest.mark.parametrize("kind", FAULTY_KINDS)
@settings(deadline=None, max_examples=20)
@given(steps=STEPS)
def test_with_faults_a_page_that_is_read_is_still_right(
    kind: str, steps: list[tuple[str, int]]
) -> None:
    told: set[int] = set()
    with _opened(kind) as store:
        for step, number in steps:
            if step == "put":
                write = store.put(_key(number), _page(number), _origin(number))
                if write.outcome is WriteOutcome.WRITTEN:
                    told.add(number)
                told -= {int.from_bytes(key, "big") for key in write.lost}
            elif step == "drop":
                write = store.drop(_key(number))
                told -= {number} | {int.from_bytes(key, "big") for key in write.lost}
            elif step == "read":
                outcome, content = _read(store, number)
                assert (outcome is ReadOutcome.MISSING) <= (number not in told)
                assert outcome is not ReadOutcome.READ or content == _page(number)
            assert set(store.pages()) == _held(told)
