"""The arena, as its daemon has it: a file in memory whose slots hold pages.

The daemon makes the file, gives slots out and takes them back; instances map it (`arena_view.py`).

A slot's *generation* rises when the slot is freed, before anybody else can be given it:

    daemon      free: generation 7 -> 8 ─▶ take, tell a writer ─(socket)─▶ the writer fills the slot
    instance    leased at 7: copies the bytes, then looks at the generation: still 7, or thrown away

So whoever has seen a byte of the slot's next user sees the raised generation too, provided that
memory is seen in that order. Relied on are: an aligned 8-byte store of numpy is one store (so on
x86-64 and aarch64, though C does not promise it); handing a slot over through a socket orders what
was before it and after it (the kernel's locks); and that the copy's loads come before the
generation's, which x86-64 gives and for which `ArenaView.generation` passes two locks on aarch64.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from bana.radix_global.arena_layout import (
    HEAD_BYTES,
    HEADER_BYTES,
    MAX_EPOCH,
    ArenaHeader,
    ArenaLayout,
    pack_header,
    parse_header,
)
from bana.radix_global.memory_room import measure_room, require_room
from bana.radix_global.slot_list import SlotList
from bana.slo.errors import ConfigError

ARENA_MODE = 0o600
_CREATE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Arena:
    """The slots of a new file at `path`, which lives until `close`.

    `epoch` is drawn anew for every life of a daemon: generations start from it, so that none of an
    earlier life is valid in this one. What a killed daemon left at `path` is replaced; whatever
    else is there, or belongs to a living one, is refused with ConfigError, as is a size for which
    there is no room. One thread owns it; `view` may be called from any.
    """

    def __init__(self, path: Path, layout: ArenaLayout, epoch: int) -> None:
        if not 0 <= epoch <= MAX_EPOCH:
            raise ConfigError(f"arena epoch {epoch}, allowed: 0..{MAX_EPOCH}; draw 63 bits")
        self.path = path
        self.layout = layout
        self.epoch = epoch
        self._slots = SlotList(layout.slots)
        self._is_closed = False
        self._fd = _create(path, ArenaHeader(layout, epoch))
        memory = mmap.mmap(self._fd, layout.file_bytes)
        self._bytes = memoryview(memory)
        self._generations = np.frombuffer(memory, np.uint64, layout.slots, HEAD_BYTES)
        # Lives of one daemon differ in the upper half; frees are counted in the lower one.
        self._generations[:] = (epoch & 0xFFFF_FFFF) << 32

    @property
    def free_slots(self) -> int:
        """How many slots nobody has."""
        return len(self._slots)

    def take(self, count: int) -> tuple[int, ...]:
        """At most `count` free slots, fewer when there are fewer; O(1) each."""
        return self._slots.take(count)

    def free(self, slots: Sequence[int]) -> None:
        """Take slots back and raise their generations; StoreError if one is not taken.

        All or none, and only when nobody writes into them any more.
        """
        self._slots.free(slots)
        for slot in slots:
            self._generations[slot] += np.uint64(1)

    def generation(self, slot: int) -> int:
        """Which generation the slot is in."""
        self.layout.require_slot(slot)
        return int(self._generations[slot])

    def view(self, slot: int) -> memoryview:
        """The slot's bytes, writable; what was there before is still there."""
        return slot_view(self._bytes[self.layout.slots_at :], self.layout, slot)

    def close(self) -> None:
        """Take the file's name away; idempotent. Memory is given back with the last mapping."""
        if self._is_closed:
            return
        self._is_closed = True
        _unlink(self.path, self._fd)
        os.close(self._fd)


def slot_view(slots: memoryview, layout: ArenaLayout, slot: int) -> memoryview:
    """One slot's bytes out of those of all."""
    layout.require_slot(slot)
    start = slot * layout.stride_bytes
    return slots[start : start + layout.slot_bytes]


def _create(path: Path, header: ArenaHeader) -> int:
    """A locked descriptor of the new file, every byte of it allocated."""
    file_bytes = header.layout.file_bytes
    try:
        _remove_left(path)
        require_room(file_bytes, measure_room(path.parent))
        fd = os.open(path, _CREATE_FLAGS, ARENA_MODE)
    except OSError as error:
        raise _refuse(path, f"{error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # With its header it can be told for an arena, even if this process is killed meanwhile.
        os.pwrite(fd, pack_header(header), 0)
        os.posix_fallocate(fd, 0, file_bytes)
    except BaseException as error:
        _unlink(path, fd)
        os.close(fd)
        if isinstance(error, OSError):
            raise _refuse(path, f"{file_bytes} bytes: {error.strerror}") from error
        raise
    return fd


def _remove_left(path: Path) -> None:
    """Remove what a killed daemon left at `path`; ConfigError if it is anything else."""
    try:
        fd = os.open(path, _LOOK_FLAGS)
    except FileNotFoundError:
        return
    try:
        _require_left(path, fd)
        _unlink(path, fd)
    finally:
        os.close(fd)


def _require_left(path: Path, fd: int) -> None:
    """Lock the file; ConfigError unless it is an arena, or the beginning of one, that nobody has.

    Only who holds its lock may take a file's name away.
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise _refuse(path, "it exists and is no file of this user's")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _refuse(path, "a running store daemon has it") from error
    try:
        if status.st_size:
            parse_header(os.pread(fd, HEADER_BYTES, 0))
    except ConfigError as error:
        raise _refuse(path, f"it exists and is no arena: {error}") from error


def _unlink(path: Path, fd: int) -> None:
    """Take the name `path` away from the file behind `fd`, if it still has it."""
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(fd), os.lstat(path)):
            os.unlink(path)


def _refuse(path: Path, why: str) -> ConfigError:
    return ConfigError(f"arena {path}: {why}; name another file, in /dev/shm")
