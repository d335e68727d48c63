"""The one folder that a directory store lives in: everything in it is untrusted.

All access goes through the folder's own descriptor, so that nothing outside is ever reached:
neither through a link inside, nor because the path was given to another folder meanwhile.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import stat
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from bana.radix_global.stores.descriptors import Descriptor
from bana.radix_global.stores.naming import is_segment_name
from bana.slo.errors import ConfigError

FOLDER_MODE = 0o700
SEGMENT_MODE = 0o600
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Distrust(StrEnum):
    """Why something in the folder is left alone."""

    FOREIGN_NAME = "foreign_name"
    NOT_A_FILE = "not_a_file"
    OTHER_OWNER = "other_owner"
    BEYOND_LIMIT = "beyond_limit"


@dataclasses.dataclass(frozen=True)
class Listing:
    """The segments of a folder by name, with their sizes, and how much else is in it."""

    sizes_bytes: Mapping[str, int]
    distrusted: Mapping[str, int]


class Folder:
    """A private folder of this user's, made if there is none; ConfigError where that is not so."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = Descriptor(_open_private(path))

    def list_segments(self, limit: int) -> Listing:
        """What stands in the folder, seen through at most `limit` names; OSError if it is gone."""
        sizes_bytes: dict[str, int] = {}
        distrusted: Counter[str] = Counter()
        with self._descriptor.use() as fd, os.scandir(fd) as entries:
            for seen, entry in enumerate(entries):
                if seen >= limit:
                    distrusted[Distrust.BEYOND_LIMIT] += 1
                    break
                with suppress(FileNotFoundError):  # taken away meanwhile
                    status = entry.stat(follow_symlinks=False)
                    distrust = _judge_name(entry.name) or _judge_status(status)
                    if distrust is None:
                        sizes_bytes[entry.name] = status.st_size
                    else:
                        distrusted[distrust] += 1
        return Listing(dict(sorted(sizes_bytes.items())), dict(distrusted))

    def open_segment(self, name: str) -> int:
        """A descriptor for reading; OSError unless it is a regular file of this user's."""
        with self._descriptor.use() as folder:
            fd = os.open(name, _READ_FLAGS, dir_fd=folder)
        try:
            distrust = _judge_status(os.fstat(fd))
            if distrust is not None:
                raise OSError(errno.ENOENT, f"no segment: {distrust}", name)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def create_segment(self, name: str) -> int:
        """A descriptor for writing a new file that this process locks; FileExistsError if taken."""
        with self._descriptor.use() as folder:
            fd = os.open(name, _CREATE_FLAGS, SEGMENT_MODE, dir_fd=folder)
        # The name alone makes the segment ours: the lock only spares it from others' evictions.
        _try_lock(fd, fcntl.LOCK_EX)
        return fd

    def remove_segment(self, name: str) -> None:
        """Take `name` out of the folder, if it is still there."""
        with self._descriptor.use() as folder, suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)

    def is_being_written(self, name: str) -> bool:
        """Whether a living process holds the segment's lock; False where locks are unknown."""
        try:
            fd = self.open_segment(name)
        except OSError:
            return False
        try:
            return not _try_lock(fd, fcntl.LOCK_SH)
        finally:
            os.close(fd)

    def written_s(self, name: str) -> float:
        """The date of the last write to the segment; OSError where it cannot be told."""
        with self._descriptor.use() as folder:
            return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime

    def free_bytes(self) -> int:
        """What the file system still grants this user."""
        with self._descriptor.use() as fd:
            free = os.fstatvfs(fd)
        return free.f_bavail * free.f_frsize

    def sync(self) -> None:
        """Put the names in the folder on the medium."""
        with self._descriptor.use() as fd:
            os.fsync(fd)

    def close(self) -> None:
        """Let go of the folder once nobody is in it; idempotent."""
        self._descriptor.retire()


def _open_private(path: Path) -> int:
    try:
        with suppress(FileExistsError):
            os.mkdir(path, FOLDER_MODE)
        fd = os.open(path, _FOLDER_FLAGS)
    except OSError as error:
        raise ConfigError(
            f"store directory {path}: {error.strerror}; name a directory that is no link, or a new "
            "one in a directory that exists"
        ) from error
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & ~FOLDER_MODE:
        os.close(fd)
        raise ConfigError(
            f"store directory {path} has owner {status.st_uid} and mode "
            f"{stat.S_IMODE(status.st_mode):o}, allowed: {os.geteuid()} and at most "
            f"{FOLDER_MODE:o}; chmod it, or name another"
        )
    return fd


def _judge_name(name: str) -> Distrust | None:
    return None if is_segment_name(name) else Distrust.FOREIGN_NAME


def _judge_status(status: os.stat_result) -> Distrust | None:
    if not stat.S_ISREG(status.st_mode):
        return Distrust.NOT_A_FILE
    return None if status.st_uid == os.geteuid() else Distrust.OTHER_OWNER


def _try_lock(fd: int, kind: int) -> bool:
    """False where another open file holds a lock against it; True where locks do not work."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
