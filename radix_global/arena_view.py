"""The arena, as an instance maps it: slots to copy from and to, generations to check by."""

from __future__ import annotations

import mmap
import os
import stat
import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bana.radix_global.arena import ARENA_MODE, slot_view
from bana.radix_global.arena_layout import HEAD_BYTES, HEADER_BYTES, ArenaHeader, parse_header
from bana.slo.errors import ConfigError, StoreError

_OPEN_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ArenaView:
    """The mapping of the arena at `path`; ConfigError unless it is a whole one of this user's.

    Bytes copied out of a leased slot count only if `generation` is, *after* the copy, what the
    lease said; a slot is written only while it is reserved. Generations are mapped read-only. When
    the daemon is gone the mapping stays as it is: nothing changes any more and no access fails, so
    whoever uses it has to learn from the connection that the daemon's epoch is over. Views may be
    used from any thread.
    """

    def __init__(self, path: Path) -> None:
        fd = _open(path)
        try:
            header = _read_header(path, fd)
            layout = header.layout
            head = mmap.mmap(fd, layout.slots_at, prot=mmap.PROT_READ)
            slots_bytes = layout.file_bytes - layout.slots_at
            slots = mmap.mmap(fd, slots_bytes, offset=layout.slots_at)
        finally:
            os.close(fd)
        self.layout = layout
        self.epoch = header.epoch
        self._generations = np.frombuffer(head, np.uint64, layout.slots, HEAD_BYTES)
        self._slots: memoryview | None = memoryview(slots)
        self._fence = threading.Lock()

    def view(self, slot: int) -> memoryview:
        """The slot's bytes, writable; StoreError once closed."""
        if self._slots is None:
            raise StoreError("the arena is no longer mapped; attach to the store again")
        return slot_view(self._slots, self.layout, slot)

    @property
    def rows(self) -> npt.NDArray[np.uint8]:
        """All slots, writable, each with what fills it up to its stride; StoreError once closed."""
        if self._slots is None:
            raise StoreError("the arena is no longer mapped; attach to the store again")
        layout = self.layout
        flat = np.frombuffer(self._slots, np.uint8, layout.slots * layout.stride_bytes)
        return flat.reshape(layout.slots, layout.stride_bytes)

    def generation(self, slot: int) -> int:
        """Which generation the slot is in now, later than every copy made before the call."""
        self.layout.require_slot(slot)
        # Loads may overtake each other on aarch64: none passes a release and the next acquire.
        for _ in range(2):
            with self._fence:
                pass
        return int(self._generations[slot])

    def close(self) -> None:
        """Give the mapping up; idempotent. It stays until the last view of a slot is gone."""
        self._slots = None


def _open(path: Path) -> int:
    try:
        return os.open(path, _OPEN_FLAGS)
    except OSError as error:
        raise _refuse(path, f"{error.strerror}") from error


def _read_header(path: Path, fd: int) -> ArenaHeader:
    """The header of a file that is what it says; ConfigError otherwise."""
    status = os.fstat(fd)
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        raise _refuse(path, "it is no regular file")
    if status.st_uid != os.geteuid() or mode & ~ARENA_MODE:
        raise _refuse(
            path,
            f"owner {status.st_uid} and mode {mode:o}, allowed: {os.geteuid()} and {ARENA_MODE:o}",
        )
    try:
        header = parse_header(os.pread(fd, HEADER_BYTES, 0))
    except ConfigError as error:
        raise _refuse(path, f"{error}") from error
    if status.st_size != header.layout.file_bytes:
        raise _refuse(
            path, f"it has {status.st_size} bytes, its header says {header.layout.file_bytes}"
        )
    return header


def _refuse(path: Path, why: str) -> ConfigError:
    return ConfigError(f"arena {path}: {why}; use the path that the store daemon tells")
