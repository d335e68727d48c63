"""How much memory can still be taken here: by the machine, the control groups and the file system.

Asked before anything is allocated. Memory beyond a control group's limit is not refused but ends
in a kill, and a full tmpfs in a SIGBUS, long after the mistake.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bana.slo.errors import ConfigError

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


class GroupFiles(msgspec.Struct, frozen=True):
    """How one version of control groups calls what is asked here."""

    limit: str
    used: str
    cached: tuple[str, ...]


_UNIFIED = GroupFiles("memory.max", "memory.current", ("inactive_file", "active_file"))
_LEGACY = GroupFiles(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)


class Room(msgspec.Struct, frozen=True):
    """Bytes that are free: in memory, control groups regarded, and on the file system."""

    memory_bytes: int
    file_system_bytes: int

    @property
    def free_bytes(self) -> int:
        """What may be taken by a file that lives in memory."""
        return min(self.memory_bytes, self.file_system_bytes)


def measure_room(folder: Path, proc: Path = PROC, cgroups: Path = CGROUPS) -> Room:
    """What a new file in `folder`, which lives in memory, could take; OSError if there is none."""
    status = os.statvfs(folder)
    memory_bytes = min([_available_bytes(proc), *_group_rooms(proc, cgroups)])
    return Room(memory_bytes, status.f_bavail * status.f_frsize)


def require_room(wanted_bytes: int, room: Room) -> None:
    """ConfigError when `wanted_bytes` are more than there is room for."""
    for name, free_bytes in (
        ("memory", room.memory_bytes),
        ("the file system", room.file_system_bytes),
    ):
        if wanted_bytes > free_bytes:
            raise ConfigError(
                f"an arena of {wanted_bytes} bytes, allowed: <= {free_bytes}, which is free in "
                f"{name}; lower store.arena_bytes or free some"
            )


def _available_bytes(proc: Path) -> int:
    for line in (proc / "meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise OSError(f"{proc / 'meminfo'} does not say MemAvailable")


def _group_rooms(proc: Path, cgroups: Path) -> Iterator[int]:
    """What is left in each control group that this process is in, as far as one can look up."""
    for line in (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _rooms_upwards(cgroups, path, _UNIFIED)
        elif "memory" in controllers.split(","):
            yield from _rooms_upwards(cgroups / "memory", path, _LEGACY)


def _rooms_upwards(mount: Path, path: str, files: GroupFiles) -> Iterator[int]:
    """Of the group and those above it; inside a container only the upper part may be visible."""
    names = [name for name in path.split("/") if name not in ("", "..")]
    for depth in range(len(names), -1, -1):
        room = _read_group(mount.joinpath(*names[:depth]), files)
        if room is not None:
            yield room


def _read_group(group: Path, files: GroupFiles) -> int | None:
    """What is left of a group's limit; None where it has none, or cannot be seen."""
    limit, used = (_read_number(group / name) for name in (files.limit, files.used))
    if limit is None or used is None:
        return None
    return max(0, limit - used + _count_cached(group, files))


def _count_cached(group: Path, files: GroupFiles) -> int:
    """Bytes of files that the group gives up when it is short; those of a tmpfs are not among."""
    try:
        lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    fields = dict(line.split() for line in lines)
    return sum(int(fields.get(name, 0)) for name in files.cached)


def _read_number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
