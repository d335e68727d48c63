"""What is free is the least of machine, control groups and file system."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bana.radix_global.memory_room import Room, measure_room, require_room
from bana.slo.errors import ConfigError

Write = Callable[[str, str], None]
MEMINFO = "MemTotal:       9000 kB\nMemAvailable:   4000 kB\n"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A function: puts a file of /proc or /sys in its place below the test's folder."""

    def write_one(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    write_one("proc/meminfo", MEMINFO)
    write_one("proc/self/cgroup", "0::/a/b\n")
    return write_one


def _memory_bytes(folder: Path) -> int:
    return measure_room(folder, folder / "proc", folder / "cgroup").memory_bytes


def test_without_limits_the_machine_decides(write: Write, tmp_path: Path) -> None:
    write("cgroup/a/b/memory.max", "max\n")
    write("cgroup/a/b/memory.current", "1\n")
    assert _memory_bytes(tmp_path) == 4000 * 1024


def test_what_a_group_caches_of_files_counts_as_free(write: Write, tmp_path: Path) -> None:
    write("cgroup/a/b/memory.max", "1000000\n")
    write("cgroup/a/b/memory.current", "600000\n")
    write("cgroup/a/b/memory.stat", "inactive_file 500\nactive_file 40\ninactive_anon 7000\n")
    assert _memory_bytes(tmp_path) == 400_540


def test_the_tightest_group_above_decides(write: Write, tmp_path: Path) -> None:
    for group, limit in (("a/b", 9_000), ("a", 700), ("", 8_000)):
        write(f"cgroup/{group}/memory.max", f"{limit}")
        write(f"cgroup/{group}/memory.current", "100")
    assert _memory_bytes(tmp_path) == 600


def test_inside_a_container_the_visible_root_is_looked_at(write: Write, tmp_path: Path) -> None:
    write("proc/self/cgroup", "0::/../../elsewhere/x\n")
    write("cgroup/memory.max", "5000")
    write("cgroup/memory.current", "6000")
    assert _memory_bytes(tmp_path) == 0


def test_legacy_groups_are_understood(write: Write, tmp_path: Path) -> None:
    write("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/x\n0::/\n")
    write("cgroup/memory/x/memory.limit_in_bytes", "3000")
    write("cgroup/memory/x/memory.usage_in_bytes", "1000")
    write("cgroup/memory/x/memory.stat", "total_inactive_file 5\ninactive_file 3\n")
    assert _memory_bytes(tmp_path) == 2_005


def test_this_machine_has_some_room(tmp_path: Path) -> None:
    room = measure_room(tmp_path)
    assert 0 < room.free_bytes <= room.file_system_bytes


@pytest.mark.parametrize(
    ("room", "where"), [(Room(99, 200), "free in memory"), (Room(200, 99), "the file system")]
)
def test_too_much_is_refused_with_what_there_is(room: Room, where: str) -> None:
    with pytest.raises(ConfigError, match=f"100 bytes, allowed: <= 99.*{where}.*arena_bytes"):
        require_room(100, room)
    require_room(99, room)
