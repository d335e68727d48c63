"""Shared descriptors are closed once, after their last user, and none is forgotten."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bana.radix_global.stores.descriptors import Descriptor, OpenFiles


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with three files."""
    for name in "abc":
        (tmp_path / name).write_text(name)
    return tmp_path


def _open(folder: Path) -> Callable[[str], int]:
    return lambda name: os.open(folder / name, os.O_RDONLY)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_a_retired_descriptor_is_open_until_its_last_user_is_done(files: Path) -> None:
    descriptor = Descriptor(_open(files)("a"))
    descriptor.acquire()
    descriptor.acquire()
    descriptor.retire()
    descriptor.retire()
    with pytest.raises(OSError, match="closed"):
        descriptor.acquire()
    descriptor.release()
    assert _is_open(descriptor.fd)
    descriptor.release()
    assert not _is_open(descriptor.fd)


def test_the_least_recently_used_file_is_closed_first(files: Path) -> None:
    opened = OpenFiles(_open(files), limit=2)
    seen = {}
    for name in "abac":
        seen[name] = opened.acquire(name)
        seen[name].release()
    assert [_is_open(seen[name].fd) for name in "abc"] == [True, False, True]
    opened.close()
    assert not any(_is_open(seen[name].fd) for name in "abc")


def test_a_file_given_up_while_in_use_stays_open_for_its_user(files: Path) -> None:
    opened = OpenFiles(_open(files), limit=1)
    first = opened.acquire("a")
    opened.acquire("b").release()
    assert os.pread(first.fd, 1, 0) == b"a"
    first.release()
    assert not _is_open(first.fd)
    opened.close()


@pytest.mark.parametrize("end", ["forget", "close"])
def test_what_ends_while_a_file_is_being_opened_is_not_kept_open(files: Path, end: str) -> None:
    def open_late(name: str) -> int:
        fd = _open(files)(name)
        opened.forget(name) if end == "forget" else opened.close()
        return fd

    opened = OpenFiles(open_late, limit=9)
    descriptor = opened.acquire("a")
    assert _is_open(descriptor.fd)
    descriptor.release()
    assert not _is_open(descriptor.fd)


def test_one_file_opened_twice_at_once_is_kept_once(files: Path) -> None:
    inner = []

    def open_twice(name: str) -> int:
        if not inner:
            inner.append(None)
            inner[0] = opened.acquire(name)
        return _open(files)(name)

    opened = OpenFiles(open_twice, limit=9)
    outer = opened.acquire("a")
    outer.release()
    assert not _is_open(outer.fd)
    assert _is_open(inner[0].fd)
    inner[0].release()
    opened.close()
    assert not _is_open(inner[0].fd)
