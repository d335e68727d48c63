"""What /proc knows of processes: when one started, who is in a group, what shared memory is used.

A pid together with its start ticks names one process for ever; a pid alone may be reused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
SHM_PREFIX = "/dev/shm/"


def read_start_ticks(pid: int) -> int | None:
    """Start time of `pid` in clock ticks since boot, None when there is no such process."""
    fields = _read_stat(pid)
    return None if fields is None else int(fields[19])


def is_same_process(pid: int, start_ticks: int) -> bool:
    """Whether `pid` is still the process that started at `start_ticks`, and no zombie."""
    fields = _read_stat(pid)
    return fields is not None and int(fields[19]) == start_ticks and fields[0] not in "ZX"


def list_group(pgid: int) -> tuple[int, ...]:
    """The processes of group `pgid` that still run; zombies do not count."""
    members = []
    for pid in _list_pids():
        fields = _read_stat(pid)
        if fields is not None and int(fields[2]) == pgid and fields[0] not in "ZX":
            members.append(pid)
    return tuple(members)


def list_segments(pid: int) -> frozenset[str]:
    """The shared memory that `pid` has mapped. Files in folders, such as weights, are none."""
    try:
        text = (PROC / str(pid) / "maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    paths = (line.split(maxsplit=5)[5] for line in text.splitlines() if SHM_PREFIX in line)
    return frozenset(p for p in paths if _is_segment(p) and not p.endswith(" (deleted)"))


def list_existing_segments() -> frozenset[str]:
    """The shared memory that there is, whoever made it."""
    try:
        return frozenset(SHM_PREFIX + name for name in os.listdir(SHM_PREFIX))
    except OSError:
        return frozenset()


def unlink_unused(segments: frozenset[str]) -> tuple[str, ...]:
    """Remove those of our own `segments` that no living process maps; returns what was removed."""
    candidates = {path for path in segments if _is_ours(path)}
    for pid in _list_pids():
        if not candidates:
            break
        candidates -= list_segments(pid)
    for path in candidates:
        Path(path).unlink(missing_ok=True)
    return tuple(sorted(candidates))


def _is_segment(path: str) -> bool:
    return path.startswith(SHM_PREFIX) and "/" not in path.removeprefix(SHM_PREFIX)


def _is_ours(path: str) -> bool:
    try:
        return os.lstat(path).st_uid == os.getuid()
    except OSError:
        return False


def _list_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir(PROC) if name.isdecimal())


def _read_stat(pid: int) -> list[str] | None:
    """The fields after the command name, which may itself hold blanks and brackets."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()
