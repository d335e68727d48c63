"""Many pages given up at once: whole segments where that is safe, marks elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.radix_global.stores.directory import DirectoryStore
from bana.radix_global.stores.memory import MemoryOptions, MemoryStore
from bana.radix_global.stores.options import DirectoryOptions
from bana.radix_global.stores.store import (
    Moment,
    PageOrigin,
    ReadOutcome,
    RefreshOutcome,
    Store,
    WriteOutcome,
)
from bana.slo.clock import ManualClock

PAGE_BYTES = 100
ORIGIN = PageOrigin(b"", 1)
SMALL = {"capacity_bytes": 2**15, "segment_bytes": 2**10}  # some four pages a segment


def _key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def _put(store: Store, numbers: Iterable[int]) -> None:
    for number in numbers:
        store.put(_key(number), Random(number).randbytes(PAGE_BYTES), ORIGIN)


def _numbers(store: Store) -> set[int]:
    return {int.from_bytes(page.key, "big") for page in store.pages()}


def _drop(store: Store, numbers: Iterable[int]) -> set[int]:
    """Give them up; which pages were told to be gone."""
    writes = list(store.drop_many([_key(number) for number in numbers]))
    assert {write.outcome for write in writes} <= {WriteOutcome.DROPPED}
    told = [int.from_bytes(key, "big") for write in writes for key in write.lost]
    assert len(set(told)) == len(told)
    return set(told)


def _segments(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_clearing_all_leaves_no_file(folder: Path, open_store: Any, recover: Any) -> None:
    store = open_store(**SMALL)
    _put(store, range(40))
    assert len(_segments(folder)) > 5
    assert _drop(store, range(45)) == set(range(40))
    assert _segments(folder) == []
    assert store.stats().held_bytes == 0
    assert store.stats().counts["cleared_segments"] > 5
    _put(store, range(3))
    store.close()
    assert recover(open_store(**SMALL)) == {_key(number) for number in range(3)}


def test_only_the_oldest_run_of_segments_is_unlinked(
    folder: Path, open_store: Any, recover: Any
) -> None:
    store = open_store(**SMALL)
    _put(store, range(40))
    before = _segments(folder)
    assert _drop(store, [*range(8), *range(20, 40)]) == {*range(8), *range(20, 40)}
    assert not set(before[:2]) & set(_segments(folder))
    assert set(before[2:]) <= set(_segments(folder))
    assert _numbers(store) == set(range(8, 20))
    store.close()
    assert recover(open_store(**SMALL)) == {_key(number) for number in range(8, 20)}


def test_what_a_living_writer_holds_stays_and_is_marked(
    folder: Path, open_store: Any, recover: Any
) -> None:
    other = open_store(**SMALL, writers=2)
    _put(other, [100])
    store = open_store(**SMALL, writers=2)
    recover(store)
    _put(store, range(12))
    held = _segments(folder)[0]
    assert _drop(store, [*range(12), 100]) == {*range(12), 100}
    assert held in _segments(folder)
    # The writer goes on in its segment, and finds that its page is marked.
    _put(other, [101])
    recover(other)
    assert _numbers(other) == {101}
    for each in (store, other):
        each.close()
    assert recover(open_store(**SMALL)) == {_key(101)}


def test_what_another_has_written_since_is_not_unlinked(
    folder: Path, open_store: Any, recover: Any
) -> None:
    other = open_store(**SMALL, writers=2)
    _put(other, [100])
    store = open_store(**SMALL, writers=2)
    recover(store)
    _put(other, [101])
    other.close()
    assert _drop(store, [100]) == {100}
    assert _numbers(store) == set()
    recover(store)
    assert _numbers(store) == {101}


def test_a_torn_segment_is_unlinked_with_the_others(
    folder: Path, open_store: Any, recover: Any
) -> None:
    store = open_store(**SMALL)
    _put(store, range(3))
    store.close()
    (path,) = folder.iterdir()
    with path.open("ab") as file:
        file.write(bytes(300))
    store = open_store(**SMALL)
    assert len(recover(store)) == 3
    assert _drop(store, range(3)) == {0, 1, 2}
    assert _segments(folder) == []


def test_a_superseded_copy_does_not_come_back(folder: Path, open_store: Any, recover: Any) -> None:
    first, second = (open_store(**SMALL, writers=2) for _ in range(2))
    _put(first, [1, 2])
    _put(second, [1])
    first.close()
    second.close()
    store = open_store(**SMALL)
    assert len(recover(store)) == 2
    _drop(store, [1])
    store.close()
    assert recover(open_store(**SMALL)) == {_key(2)}


def test_where_the_folder_is_gone_every_page_fails_and_none_is_held(
    folder: Path, open_store: Any
) -> None:
    store = open_store(**SMALL)
    _put(store, range(3))
    folder.rename(folder.with_name("elsewhere"))
    for path in folder.with_name("elsewhere").iterdir():
        path.unlink()
    folder.with_name("elsewhere").rmdir()
    writes = list(store.drop_many([_key(number) for number in range(3)]))
    assert {key for write in writes for key in write.lost} == {_key(n) for n in range(3)}
    assert _numbers(store) == set()


def test_a_page_of_a_directory_is_as_old_as_its_segment(folder: Path, open_store: Any) -> None:
    store = open_store(**SMALL)
    _put(store, range(12))
    paths = sorted(folder.iterdir())
    for date_s, path in enumerate(paths):
        os.utime(path, (9, date_s))
    first = {int.from_bytes(page.key, "big") for page in store.pages_before(Moment(0.0, 0.5))}
    assert first == set(range(len(first)))
    assert 0 < len(first) < 12
    assert store.pages_before(Moment(1e9, 0.0)) == []
    assert len(store.pages_before(Moment(0.0, 100.0))) == 12
    paths[0].unlink()
    assert len(store.pages_before(Moment(0.0, 100.0))) == 12 - len(first)


def test_a_page_in_memory_is_as_old_as_its_coming() -> None:
    clock = ManualClock(5.0)
    store = MemoryStore(MemoryOptions(2**16), clock)
    _put(store, [1])
    clock.advance(10.0)
    _put(store, [2])
    store.read(_key(1), memoryview(bytearray(PAGE_BYTES)))
    assert [page.key for page in store.pages_before(Moment(15.0, 0.0))] == [_key(1)]
    assert store.pages_before(Moment(5.0, 1e12)) == []


@pytest.mark.parametrize("is_reopened", [False, True])
@settings(deadline=None, max_examples=60)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["put", "put", "drop", "roll"]), st.integers(0, 15)), max_size=40
    ),
    goes=st.sets(st.integers(0, 15)),
)
def test_whatever_was_given_up_stays_away(
    tmp_path_factory: Any, is_reopened: bool, steps: list[tuple[str, int]], goes: set[int]
) -> None:
    """Two writers put, drop and give up; what a third one finds is what was not given up.

    A page that one dropped and another put again, in a segment that it had begun before, may stay
    hidden: that is a drop's, and costs the page only.
    """
    folder = tmp_path_factory.mktemp("cleared") / "tier"
    options = DirectoryOptions(**{**SMALL, "writers": 2})
    stores = [DirectoryStore(folder, options, Random(seed)) for seed in (1, 2)]
    for turn, (step, number) in enumerate(steps):
        store = stores[turn % 2]
        while store.refresh().outcome is not RefreshOutcome.WHOLE:
            continue
        if step == "put":
            _put(store, [number])
        elif step == "drop":
            store.drop(_key(number))
        else:
            store.close()
            stores[turn % 2] = DirectoryStore(folder, options, Random(turn + 3))
    if is_reopened:
        stores[1].close()
    while stores[0].refresh().outcome is not RefreshOutcome.WHOLE:
        continue
    held = _numbers(stores[0])
    assert _drop(stores[0], goes) == held & goes
    assert _numbers(stores[0]) == held - goes
    for store in stores:
        store.close()
    last = DirectoryStore(folder, options, Random(99))
    while last.refresh().outcome is not RefreshOutcome.WHOLE:
        continue
    found = _numbers(last)
    assert found <= held - goes
    assert found == held - goes or "drop" in {step for step, _ in steps}
    for number in found:
        target = bytearray(PAGE_BYTES)
        assert last.read(_key(number), memoryview(target)) is ReadOutcome.READ
    last.close()
