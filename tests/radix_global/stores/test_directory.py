"""What a directory store keeps over its life: restarts, evictions, bounds, other writers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.stores.directory import DirectoryStore
from bana.radix_global.stores.segment import Sync
from bana.radix_global.stores.store import (
    HeldPage,
    PageOrigin,
    ReadOutcome,
    RefreshOutcome,
    WriteOutcome,
)

SMALL = {"capacity_bytes": 2**14, "segment_bytes": 2**11}  # 8 segments of about 8 pages
PAGE_BYTES = 100
ENTRY_BYTES = PAGE_BYTES + 128


def _key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "big")


def _origin(number: int) -> PageOrigin:
    return PageOrigin(_key(number - 1) if number % 7 else b"", 2**31 + number)


def _page(number: int) -> bytes:
    return Random(number).randbytes(PAGE_BYTES)


def _put(store: DirectoryStore, numbers: range) -> set[int]:
    """Put pages and answer which other ones that cost."""
    lost: set[int] = set()
    for number in numbers:
        write = store.put(_key(number), _page(number), _origin(number))
        assert write.outcome is WriteOutcome.WRITTEN
        lost |= {int.from_bytes(key, "big") for key in write.lost}
    return lost


def _read(store: DirectoryStore, number: int) -> ReadOutcome:
    target = bytearray(PAGE_BYTES)
    outcome = store.read(_key(number), memoryview(target))
    assert outcome is not ReadOutcome.READ or target == _page(number)
    return outcome


def _numbers(found: Iterable[bytes | HeldPage]) -> set[int]:
    """Which pages these are, and that each one told in full is told right."""
    numbers = set()
    for one in found:
        key = one if isinstance(one, bytes) else one.key
        number = int.from_bytes(key, "big")
        assert one in (key, HeldPage(key, _origin(number), PAGE_BYTES))
        numbers.add(number)
    return numbers


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("sync", Sync)
def test_pages_and_drops_outlive_the_store(open_store: Any, recover: Any, sync: Sync) -> None:
    store = open_store(sync=sync)
    _put(store, range(10))
    store.drop(_key(4))
    store.close()
    again = open_store(sync=sync)
    assert _numbers(recover(again)) == set(range(10)) - {4}
    assert all(_read(again, number) is ReadOutcome.READ for number in set(range(10)) - {4})
    _put(again, range(10, 12))
    assert _numbers(again.pages()) == set(range(12)) - {4}


def test_the_oldest_go_first_and_the_losses_are_told(folder: Path, open_store: Any) -> None:
    store = open_store(**SMALL)
    lost = _put(store, range(1_000))
    kept = _numbers(store.pages())
    assert lost | kept == set(range(1_000))
    assert lost & kept == set()
    assert max(lost) < min(kept)
    assert len(kept) * ENTRY_BYTES > SMALL["capacity_bytes"] // 2
    assert store.stats().counts["evicted_segments"] > 50
    assert all(_read(store, number) is ReadOutcome.READ for number in kept)


def test_the_folder_never_passes_its_capacity(folder: Path, open_store: Any) -> None:
    store = open_store(**SMALL)
    largest = 0
    for number in range(600):
        _put(store, range(number, number + 1))
        _read(store, number - number % 3)  # a third of the pages is hot
        largest = max(largest, _size_bytes(folder))
    assert store.stats().held_bytes == _size_bytes(folder)
    assert SMALL["capacity_bytes"] // 2 < largest <= SMALL["capacity_bytes"]


def test_pages_that_are_read_outlive_those_that_are_not(open_store: Any) -> None:
    store = open_store(**SMALL)
    hot = range(3)
    _put(store, hot)
    for number in range(3, 400):
        _put(store, range(number, number + 1))
        assert all(_read(store, page) is ReadOutcome.READ for page in hot)
    assert 3 not in _numbers(store.pages())
    assert store.stats().counts["kept_pages"] > 3


def test_a_page_read_once_gets_one_more_life(open_store: Any) -> None:
    store = open_store(**SMALL)
    _put(store, range(1))
    assert _read(store, 0) is ReadOutcome.READ
    lost_at = [n for n in range(1, 400) if 0 in _put(store, range(n, n + 1))]
    pages_in_capacity = SMALL["capacity_bytes"] // ENTRY_BYTES
    assert len(lost_at) == 1
    assert pages_in_capacity * 1.2 < lost_at[0] < pages_in_capacity * 2


def test_no_chance_is_given_where_none_is_wanted(open_store: Any) -> None:
    store = open_store(**SMALL, kept_share=0.0)
    _put(store, range(1))
    for number in range(1, 200):
        _put(store, range(number, number + 1))
        _read(store, 0)
    assert not store.holds(_key(0))


def test_a_drop_that_evicts_the_page_itself_is_a_drop(open_store: Any, recover: Any) -> None:
    store = open_store(**SMALL)
    _put(store, range(500))
    # Each mark takes room too: going on, the oldest page is now and then where room is made.
    for _ in range(60):
        oldest = min(_numbers(store.pages()))
        before = _numbers(store.pages())
        write = store.drop(_key(oldest))
        assert write.outcome is WriteOutcome.DROPPED
        assert before - _numbers(store.pages()) == {oldest} | _numbers(write.lost)
        assert oldest not in _numbers(write.lost)
    kept = _numbers(store.pages())
    store.close()
    again = open_store(**SMALL)
    assert _numbers(recover(again)) == _numbers(again.pages()) == kept


def test_a_bound_on_pages_holds_too(open_store: Any, recover: Any) -> None:
    store = open_store(max_pages=40)
    lost = _put(store, range(300))
    assert 30 <= len(store.pages()) <= 40
    assert len(lost) + len(store.pages()) == 300
    store.close()
    narrow = open_store(max_pages=5)
    assert len(recover(narrow)) == 5
    assert narrow.stats().counts["scans_beyond_max_pages"] == 1
    assert narrow.put(_key(1000), _page(1000), _origin(1000)).outcome is WriteOutcome.WRITTEN


def test_a_bound_on_segments_holds_too(folder: Path, open_store: Any) -> None:
    """Every start leaves a segment behind, however little was put into it."""
    for number in range(30):
        store = open_store(max_segments=5)
        store.refresh()
        _put(store, range(number, number + 1))
        store.close()
    assert len(list(folder.iterdir())) <= 6


def test_a_store_that_put_nothing_leaves_nothing(folder: Path, open_store: Any) -> None:
    store = open_store()
    store.refresh()
    assert store.drop(_key(1)).outcome is WriteOutcome.MISSING
    store.close()
    assert list(folder.iterdir()) == []


def test_recovery_goes_in_bounded_steps(open_store: Any) -> None:
    store = open_store()
    _put(store, range(10))
    store.close()
    again = open_store(scan_pages=4)
    steps = [again.refresh() for _ in range(3)]
    assert [len(step.found) for step in steps] == [4, 4, 2]
    assert [step.outcome for step in steps] == [
        RefreshOutcome.PARTIAL,
        RefreshOutcome.PARTIAL,
        RefreshOutcome.WHOLE,
    ]


def test_one_writer_finds_what_another_wrote_and_dropped(open_store: Any) -> None:
    ours, theirs = open_store(), open_store()
    _put(ours, range(5))
    assert _read(theirs, 2) is ReadOutcome.MISSING
    assert _numbers(theirs.refresh().found) == set(range(5))
    assert _read(theirs, 2) is ReadOutcome.READ
    _put(ours, range(5, 7))
    _put(theirs, range(10, 12))
    assert _numbers(theirs.refresh().found) == {5, 6}
    assert _numbers(ours.refresh().found) == {10, 11}
    ours.drop(_key(11))
    assert _numbers(theirs.refresh().lost) == {11}
    assert _read(theirs, 11) is ReadOutcome.MISSING
    assert theirs.refresh().found == theirs.refresh().lost == ()


def test_one_page_of_two_writers_is_one_page(folder: Path, open_store: Any, recover: Any) -> None:
    ours, theirs = open_store(), open_store()
    _put(ours, range(5))
    _put(theirs, range(5))
    assert ours.refresh().found == theirs.refresh().found == ()
    assert all(_read(s, n) is ReadOutcome.READ for s in (ours, theirs) for n in range(5))
    assert len(list(folder.iterdir())) == 2
    assert _numbers(recover(open_store())) == set(range(5))


def test_the_copy_in_the_newer_segment_counts_whenever_it_is_found(
    folder: Path, open_store: Any
) -> None:
    """Known from the newer segment, then written to the older one too, and dropped there."""
    older, newer, reader = open_store(), open_store(), open_store()
    _put(older, range(9, 10))
    newer.refresh()
    _put(newer, range(1))
    assert _numbers(reader.refresh().found) == {0, 9}
    _put(older, range(1))
    assert reader.refresh().found == ()
    older_segment = min(folder.iterdir())
    sound = older_segment.read_bytes()
    older_segment.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    assert _read(reader, 0) is ReadOutcome.READ
    assert older.drop(_key(0)).outcome is WriteOutcome.DROPPED
    assert reader.refresh().lost == ()
    assert _read(reader, 0) is ReadOutcome.READ


def test_a_page_that_moves_while_it_is_being_opened_is_read_where_it_went(
    folder: Path, open_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(**SMALL, max_open_segments=1)
    _put(store, range(40))
    for number in (0, 39):  # 0 is hot, and the file that is kept open is another one's
        assert _read(store, number) is ReadOutcome.READ
    oldest, moves = min(folder.iterdir()), count(100)
    open_file = os.open

    def evict_first(name: Any, *words: Any, **more: Any) -> int:
        if name == oldest.name:
            monkeypatch.setattr(os, "open", open_file)
            while oldest.exists():
                _put(store, range(number := next(moves), number + 1))
        return open_file(name, *words, **more)

    monkeypatch.setattr(os, "open", evict_first)
    assert _read(store, 0) is ReadOutcome.READ
    assert next(moves) > 101


def test_a_living_writers_segment_is_not_evicted(folder: Path, open_store: Any) -> None:
    theirs = open_store(**SMALL)
    _put(theirs, range(3))
    (segment,) = folder.iterdir()
    ours = open_store(**SMALL)
    ours.refresh()
    _put(ours, range(10, 500))
    assert segment.exists()
    assert all(_read(theirs, number) is ReadOutcome.READ for number in range(3))
    theirs.close()
    _put(ours, range(500, 700))
    assert not segment.exists()


def test_what_another_evicted_is_missing_and_then_told(open_store: Any) -> None:
    theirs, ours = open_store(**SMALL), open_store(**SMALL, max_open_segments=1)
    lost = _put(theirs, range(60))
    ours.refresh()
    lost |= _put(theirs, range(60, 200))
    assert 0 in lost
    assert _read(ours, 0) is ReadOutcome.MISSING
    assert not ours.holds(_key(0))
    refresh = ours.refresh()
    # What the read told of as well: whoever began it may not have waited for its end.
    assert _numbers(refresh.lost) == set(range(60)) & lost
    assert set(ours.pages()) == set(theirs.pages())


def test_when_all_is_being_written_the_store_is_full(folder: Path, open_store: Any) -> None:
    """Twelve writers where one was announced: each holds a segment that nobody may take."""
    writers = [open_store(**SMALL) for _ in range(12)]
    outcomes = [
        writer.put(_key(number), _page(number), _origin(number)).outcome
        for number in range(600)
        for writer in [writers[number % 12]]
    ]
    assert set(outcomes) == {WriteOutcome.WRITTEN, WriteOutcome.FULL}
    assert outcomes[0] is WriteOutcome.WRITTEN
    for writer in writers[1:]:
        writer.close()
    assert writers[0].put(_key(999), _page(999), _origin(999)).outcome is WriteOutcome.WRITTEN


def test_announced_writers_keep_the_capacity_together(folder: Path, open_store: Any) -> None:
    writers = [open_store(capacity_bytes=2**15, segment_bytes=2**11, writers=3) for _ in range(3)]
    rng, largest = Random(5), 0
    for number in range(1_500):
        writer = rng.choice(writers)
        assert (
            writer.put(_key(number), _page(number), _origin(number)).outcome is WriteOutcome.WRITTEN
        )
        _read(writer, number)
        largest = max(largest, _size_bytes(folder))
    assert largest <= 2**15


def test_few_files_are_open_at_a_time_and_none_at_the_end(
    open_store: Any, count_open_files: Callable[[], int]
) -> None:
    before = count_open_files()
    store = open_store(**SMALL, max_open_segments=2)
    largest = 0
    for number in range(300):
        _put(store, range(number, number + 1))
        _read(store, number // 2)
        store.refresh()
        largest = max(largest, count_open_files())
    assert largest <= before + 4  # the folder, the segment being written, two being read
    store.close()
    assert count_open_files() == before


def _deleted_open_files() -> list[str]:
    links = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own
            links.append(os.readlink(path))
    return [link for link in links if link.endswith(".pages (deleted)")]


def test_no_evicted_file_is_kept_open(folder: Path, open_store: Any) -> None:
    """It would take its room on the disk for as long as that."""
    ours, theirs = open_store(**SMALL), open_store(**SMALL)
    _put(ours, range(50))
    theirs.refresh()
    assert all(_read(s, number) is ReadOutcome.READ for s in (ours, theirs) for number in range(50))
    assert _deleted_open_files() == []
    _put(ours, range(50, 400))
    assert set(_deleted_open_files()) != set()  # theirs do not know yet
    theirs.refresh()
    assert _deleted_open_files() == []


def test_closing_beside_readers_leaves_no_file_open(
    open_store: Any, count_open_files: Callable[[], int]
) -> None:
    before = count_open_files()
    for _ in range(20):
        store = open_store(max_open_segments=1, segment_bytes=2**10)
        _put(store, range(30))
        outcomes = _read_while_closing(store)
        assert outcomes <= {ReadOutcome.READ, ReadOutcome.FAILED}
        assert count_open_files() == before


def _read_while_closing(store: DirectoryStore) -> set[ReadOutcome]:
    seen: set[ReadOutcome] = set()
    started = threading.Barrier(4)

    def read_all() -> None:
        started.wait()
        seen.update(_read(store, number) for number in range(30))

    readers = [threading.Thread(target=read_all) for _ in range(3)]
    for thread in readers:
        thread.start()
    started.wait()
    store.close()
    for thread in readers:
        thread.join()
    return seen
