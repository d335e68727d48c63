"""What the operating system may do to a directory store: refuse, fail, and work in parts."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import xxhash

from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.stores.directory import DirectoryStore
from bana.radix_global.stores.segment import Sync
from bana.radix_global.stores.store import PageOrigin, ReadOutcome, RefreshOutcome, WriteOutcome

KEYS = [bytes([n]) * KEY_BYTES for n in range(8)]
PAGES = [Random(n).randbytes(500) for n in range(8)]
ORIGIN = PageOrigin(KEYS[5], 1)


def _read(store: DirectoryStore, number: int) -> ReadOutcome:
    target = bytearray(len(PAGES[number]))
    outcome = store.read(KEYS[number], memoryview(target))
    assert outcome is not ReadOutcome.READ or target == PAGES[number]
    return outcome


def _put(store: DirectoryStore, number: int) -> WriteOutcome:
    return store.put(KEYS[number], PAGES[number], ORIGIN).outcome


def _fail(code: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(
    ("code", "outcome", "stays"),
    [
        (errno.EIO, ReadOutcome.FAILED, True),
        (errno.ETIMEDOUT, ReadOutcome.LATE, True),
        (errno.ESTALE, ReadOutcome.MISSING, False),
    ],
)
def test_a_read_that_fails_is_an_outcome(
    open_store: Any, monkeypatch: pytest.MonkeyPatch, code: int, outcome: ReadOutcome, stays: bool
) -> None:
    store = open_store()
    _put(store, 0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", _fail(code))
        assert _read(store, 0) is outcome
    assert store.holds(KEYS[0]) is stays
    assert _read(store, 0) is (ReadOutcome.READ if stays else ReadOutcome.MISSING)


@pytest.mark.parametrize("call", ["pwrite", "open", "fdatasync", "fsync", "scandir"])
@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (errno.ENOSPC, WriteOutcome.FULL),
        (errno.EDQUOT, WriteOutcome.FULL),
        (errno.EFBIG, WriteOutcome.FULL),
        (errno.EIO, WriteOutcome.FAILED),
        (errno.EROFS, WriteOutcome.FAILED),
        (errno.ETIMEDOUT, WriteOutcome.LATE),
    ],
)
def test_a_put_that_fails_is_an_outcome_and_leaves_no_trace(
    open_store: Any,
    recover: Any,
    monkeypatch: pytest.MonkeyPatch,
    count_open_files: Callable[[], int],
    call: str,
    code: int,
    outcome: WriteOutcome,
) -> None:
    store = open_store(sync=Sync.EACH_PAGE)
    before = count_open_files()
    with monkeypatch.context() as patched:
        patched.setattr(os, call, _fail(code))
        assert _put(store, 0) is outcome
    assert not store.holds(KEYS[0])
    assert _put(store, 0) is WriteOutcome.WRITTEN
    assert _read(store, 0) is ReadOutcome.READ
    assert recover(open_store()) == {KEYS[0]}
    store.close()
    assert count_open_files() <= before + 1  # the store that looked is still open


def test_a_refresh_that_fails_is_an_outcome(
    open_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = open_store(), open_store()
    _put(theirs, 0)
    _put(ours, 1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", _fail(errno.EIO))
        assert ours.refresh().outcome is RefreshOutcome.FAILED
        assert _read(ours, 1) is ReadOutcome.READ
    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", _fail(errno.EIO))
        assert ours.refresh().found == ()
    assert ours.stats().counts == {"failed_listings": 1, "unreadable_segments": 1}
    assert [page.key for page in ours.refresh().found] == [KEYS[0]]


def test_a_drop_that_cannot_be_written_holds_until_the_store_ends(
    open_store: Any, recover: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    _put(store, 0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", _fail(errno.ENOSPC))
        assert store.drop(KEYS[0]).outcome is WriteOutcome.FULL
    assert _read(store, 0) is ReadOutcome.MISSING
    assert recover(open_store()) == {KEYS[0]}


def test_reads_and_writes_in_parts_are_whole(
    open_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, preadv = os.pwrite, os.preadv

    def write_some(fd: int, data: Any, offset: int) -> int:
        return pwrite(fd, data[:7], offset)

    def read_some(fd: int, targets: list[Any], offset: int) -> int:
        if len(targets) == 1:
            return preadv(fd, [targets[0][:11]], offset)
        return preadv(fd, [targets[0], memoryview(targets[1])[:3]], offset)

    monkeypatch.setattr(os, "pwrite", write_some)
    monkeypatch.setattr(os, "preadv", read_some)
    store = open_store()
    assert _put(store, 0) is WriteOutcome.WRITTEN
    assert _read(store, 0) is ReadOutcome.READ


@pytest.mark.parametrize("can_truncate", [True, False])
def test_the_remains_of_a_failed_put_are_never_taken_for_entries(
    open_store: Any, recover: Any, monkeypatch: pytest.MonkeyPatch, can_truncate: bool
) -> None:
    """A long payload holds a forged entry just where the next, shorter entry will end."""
    fields = struct.pack(
        "<8sHHI16s16sQ16s48x", b"\x89BANA\r\n\x1a", 1, 1, 0, bytes(16), KEYS[7], 500, bytes(16)
    )
    forged = fields + xxhash.xxh3_64_digest(fields) + bytes(500)
    writes: list[int] = []
    pwrite = os.pwrite

    def fail_at_header(fd: int, data: Any, offset: int) -> int:
        if len(writes) == 1:
            raise OSError(errno.EIO, "injected")
        writes.append(offset)
        return pwrite(fd, data, offset)

    store = open_store()
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", fail_at_header)
        if not can_truncate:
            patched.setattr(os, "ftruncate", _fail(errno.EIO))
        assert store.put(KEYS[1], PAGES[0] + forged, ORIGIN).outcome is WriteOutcome.FAILED
    assert _put(store, 0) is WriteOutcome.WRITTEN
    assert recover(open_store()) == {KEYS[0]}


FULL_DISK = """
import os, resource, sys
from pathlib import Path
from random import Random
from bana.radix_global.stores.directory import DirectoryStore
from bana.radix_global.stores.options import DirectoryOptions
from bana.radix_global.stores.store import PageOrigin, ReadOutcome, WriteOutcome

origin = PageOrigin(b"", 1)
def key(number): return number.to_bytes(16, "big")
def page(number): return Random(number).randbytes(5000)
def read(number):
    target = bytearray(5000)
    outcome = store.read(key(number), memoryview(target))
    assert outcome is not ReadOutcome.READ or target == page(number)
    return outcome

folder = Path(sys.argv[1])
options = DirectoryOptions(capacity_bytes=2**18, segment_bytes=2**16)
store = DirectoryStore(folder, options, Random(1))
store.put(key(0), page(0), origin)
{fill}
outcomes = [store.put(key(n), page(n), origin).outcome for n in range(1, 40)]
assert set(outcomes) == {{WriteOutcome.WRITTEN, WriteOutcome.FULL}}, set(outcomes)
there = [0] + [n for n, outcome in enumerate(outcomes, 1) if outcome is WriteOutcome.WRITTEN]
assert all(read(n) is ReadOutcome.READ for n in there)
assert {{page.key for page in store.pages()}} == {{key(n) for n in there}}
{free}
assert store.put(key(99), page(99), origin).outcome is WriteOutcome.WRITTEN
store.close()
again = DirectoryStore(folder, options, Random(2))
found = again.refresh().found
assert {{page.key for page in found}} == {{key(n) for n in [*there, 99]}}, len(found)
print("still whole with", len(found))
"""
FILE_LIMIT = FULL_DISK.format(
    fill="resource.setrlimit(resource.RLIMIT_FSIZE, (22_000, resource.RLIM_INFINITY))",
    free="resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, resource.RLIM_INFINITY))",
)
FILL_DISK = """
filler = os.open(folder.parent / "filler", os.O_CREAT | os.O_WRONLY)
filled = 0
while os.statvfs(folder).f_bavail > 6:
    filled += os.write(filler, bytes(4096))
"""
SMALL_DISK = FULL_DISK.format(
    fill=FILL_DISK, free='os.close(filler); os.unlink(folder.parent / "filler")'
)


def _run(script: str, place: Path, *prefix: str) -> str:
    argv = [*prefix, sys.executable, "-c", script, str(place / "tier")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_limit_on_file_sizes_is_a_full_tier(tmp_path: Path) -> None:
    assert "still whole" in _run(FILE_LIMIT, tmp_path)


def test_a_full_disk_is_a_full_tier(tmp_path: Path) -> None:
    """On a small file system of its own, seen by the child only."""
    mount = f"mount -t tmpfs -o size=512k none {tmp_path}"
    own_mounts = ("unshare", "--mount", "sh", "-c", f'{mount} && exec "$0" "$@"')
    may_mount = (
        shutil.which("unshare")
        and not subprocess.run([*own_mounts, "true"], capture_output=True, timeout=60).returncode
    )
    if not may_mount:
        pytest.skip("no file system can be mounted here")
    assert "still whole" in _run(SMALL_DISK, tmp_path, *own_mounts)
