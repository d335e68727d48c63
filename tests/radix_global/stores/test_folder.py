"""Whatever stands in the folder of a store is left alone, unless it is a segment of this user's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.stores.store import PageOrigin, ReadOutcome, RefreshOutcome, WriteOutcome
from bana.slo.errors import ConfigError

KEY = bytes(KEY_BYTES)
PAGE = b"page" * 30
ORIGIN = PageOrigin(b"parent of a page", 1)


def _segment(number: int) -> str:
    return f"seg-{number:012x}-{'0' * 24}.pages"


def _read(store: Any, key: bytes = KEY) -> ReadOutcome:
    outcome = store.read(key, target := memoryview(bytearray(len(PAGE))))
    assert outcome is not ReadOutcome.READ or target == PAGE
    return outcome


def _fill(store: Any, pages: int) -> None:
    """Enough to evict everything that was there before."""
    for number in range(1, pages):
        write = store.put(number.to_bytes(KEY_BYTES, "big"), PAGE, ORIGIN)
        assert write.outcome is WriteOutcome.WRITTEN


@pytest.fixture
def real_segment(tmp_path: Path, open_store: Any) -> Path:
    """A sound segment that stands elsewhere."""
    store = open_store(tmp_path / "elsewhere")
    store.put(KEY, PAGE, ORIGIN)
    store.close()
    (segment,) = (tmp_path / "elsewhere").iterdir()
    return segment


def test_links_are_neither_followed_nor_changed_behind(
    folder: Path, open_store: Any, recover: Any, real_segment: Path
) -> None:
    folder.mkdir(0o700)
    (folder / _segment(1)).symlink_to(real_segment)
    (folder / _segment(2)).symlink_to(folder / "nowhere")
    store = open_store(capacity_bytes=2**14, segment_bytes=2**11)
    assert recover(store) == set()
    assert store.stats().counts == {"not_a_file": 2}
    before = real_segment.read_bytes()
    _fill(store, 200)
    assert real_segment.read_bytes() == before
    assert (folder / _segment(1)).is_symlink()


def test_a_segment_that_becomes_a_link_is_missing(
    folder: Path, open_store: Any, recover: Any, real_segment: Path
) -> None:
    folder.mkdir(0o700)
    shutil.copy(real_segment, folder / _segment(1))
    store = open_store(max_open_segments=1)
    assert recover(store) == {KEY}
    _fill(store, 2)
    assert _read(store, (1).to_bytes(KEY_BYTES, "big")) is ReadOutcome.READ  # takes the open file
    (folder / _segment(1)).unlink()
    (folder / _segment(1)).symlink_to(real_segment)
    assert _read(store) is ReadOutcome.MISSING
    assert not store.holds(KEY)


def test_foreign_names_folders_and_pipes_are_counted_and_stay(
    folder: Path, open_store: Any, recover: Any
) -> None:
    """A pipe in a segment's place would block whoever opened it."""
    folder.mkdir(0o700)
    (folder / "notes.txt").write_text("mine")
    (folder / (_segment(1) + ".tmp")).write_bytes(b"")
    (folder / "seg-ffff.pages").write_bytes(b"")
    (folder / _segment(1).upper()).write_bytes(b"")
    (folder / _segment(2)).mkdir()
    os.mkfifo(folder / _segment(3))
    store = open_store(capacity_bytes=2**14, segment_bytes=2**11)
    assert recover(store) == set()
    assert store.stats().counts == {"foreign_name": 4, "not_a_file": 2}
    _fill(store, 200)
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / _segment(2)).is_dir()
    assert (folder / _segment(3)).is_fifo()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_another_owner_are_not_trusted(
    folder: Path, open_store: Any, recover: Any, real_segment: Path
) -> None:
    folder.mkdir(0o700)
    shutil.copy(real_segment, folder / _segment(1))
    os.chown(folder / _segment(1), 12345, 12345)
    store = open_store()
    assert recover(store) == set()
    assert store.stats().counts == {"other_owner": 1}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_a_folder_of_another_owner_is_refused(folder: Path, open_store: Any) -> None:
    folder.mkdir(0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(ConfigError, match="owner 12345"):
        open_store()


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o720, 0o777])
def test_a_folder_that_others_may_enter_is_refused(
    folder: Path, open_store: Any, mode: int, count_open_files: Any
) -> None:
    folder.mkdir()
    folder.chmod(mode)
    before = count_open_files()
    with pytest.raises(ConfigError, match=f"mode {mode:o}.*chmod"):
        open_store()
    assert count_open_files() == before


def test_a_place_that_is_no_folder_is_refused(folder: Path, open_store: Any) -> None:
    (folder.parent / "real").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "real")
    with pytest.raises(ConfigError, match="is no link"):
        open_store()
    folder.unlink()
    folder.write_text("a file")
    with pytest.raises(ConfigError, match="Not a directory"):
        open_store()
    with pytest.raises(ConfigError, match="No such file"):
        open_store(folder.parent / "absent" / "tier")


def test_a_capacity_beyond_the_disk_is_refused(
    folder: Path, open_store: Any, count_open_files: Any
) -> None:
    before = count_open_files()
    with pytest.raises(ConfigError, match="which is free"):
        open_store(capacity_bytes=2**62)
    assert count_open_files() == before


def test_a_huge_sequence_number_stops_nobody(folder: Path, open_store: Any, recover: Any) -> None:
    folder.mkdir(0o700)
    (folder / _segment(2**48 - 1)).write_bytes(b"")
    store = open_store(capacity_bytes=2**14, segment_bytes=2**11)
    recover(store)
    _fill(store, 300)
    assert store.stats().held_bytes <= 2**14
    key = store.pages()[-1].key
    assert _read(store, key) is ReadOutcome.READ
    assert store.drop(key).outcome is WriteOutcome.DROPPED
    assert not store.holds(key)


def test_names_beyond_the_bound_are_not_looked_at(
    folder: Path, open_store: Any, recover: Any
) -> None:
    folder.mkdir(0o700)
    for number in range(50):
        (folder / f"other-{number}").write_bytes(b"")
    store = open_store(max_segments=10)
    assert recover(store) == set()
    assert store.stats().counts == {"foreign_name": 20, "beyond_limit": 1}


def test_a_folder_that_is_gone_fails_without_an_exception(folder: Path, open_store: Any) -> None:
    store = open_store(max_open_segments=1)
    store.put(KEY, PAGE, ORIGIN)
    shutil.rmtree(folder)
    assert _read(store) is ReadOutcome.MISSING
    assert store.put(KEY, PAGE, ORIGIN).outcome is WriteOutcome.FAILED
    assert store.refresh().outcome in (RefreshOutcome.WHOLE, RefreshOutcome.FAILED)
    assert store.pages() == []
    assert not folder.exists()


def test_another_folder_in_its_place_is_never_touched(folder: Path, open_store: Any) -> None:
    store = open_store()
    store.put(KEY, PAGE, ORIGIN)
    folder.rename(folder.parent / "moved")
    folder.mkdir(0o700)
    _fill(store, 50)
    assert list(folder.iterdir()) == []
    assert _read(store) is ReadOutcome.READ


def test_a_segment_that_somebody_deletes_is_not_written_on(folder: Path, open_store: Any) -> None:
    store = open_store()
    store.put(KEY, PAGE, ORIGIN)
    (segment,) = folder.iterdir()
    segment.unlink()
    other = b"x" * KEY_BYTES
    write = store.put(other, PAGE, ORIGIN)
    assert (write.outcome, write.lost) == (WriteOutcome.WRITTEN, (KEY,))
    assert _read(store, other) is ReadOutcome.READ
    assert len(list(folder.iterdir())) == 1
    next(folder.iterdir()).unlink()
    refresh = store.refresh()
    assert (refresh.outcome, refresh.lost) == (RefreshOutcome.WHOLE, (other,))
