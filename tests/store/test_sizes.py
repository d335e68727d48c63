"""What does not fit is refused before any of it is taken."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from bana.radix_global.memory_room import Room
from bana.slo.errors import ConfigError
from sglang_bana.config import StoreConfig, StoreTierConfig, TierKind
from sglang_bana.store import mooncake, sizes
from sglang_bana.store.sizes import check_disks, resolve_sizes

GIB = 2**30


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 GiB of memory, 50 of them in /dev/shm."""
    monkeypatch.setattr(sizes, "measure_room", lambda folder: Room(100 * GIB, 50 * GIB))


def memory_tier(size: int) -> StoreTierConfig:
    return StoreTierConfig(TierKind.MEMORY, capacity_bytes=size)


def test_the_arena_is_a_tenth_of_what_is_free() -> None:
    assert resolve_sizes(StoreConfig()).arena_bytes == 5 * GIB
    assert resolve_sizes(StoreConfig(arena_bytes=7 * GIB)).arena_bytes == 7 * GIB


def test_the_lanes_of_a_pool_take_memory_and_need_their_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lanes = {"master": "127.0.0.1:1", "lanes": 2, "buffer_bytes": 31 * GIB}
    pool = StoreTierConfig(TierKind.MOONCAKE, options=lanes)
    store = StoreConfig(arena_bytes=40 * GIB, tiers=(pool,))
    monkeypatch.setattr(mooncake, "MODULE", "pytest")
    with pytest.raises(ConfigError, match="memory tiers"):
        resolve_sizes(store)
    monkeypatch.setattr(mooncake, "MODULE", "a_module_that_is_not_there")
    with pytest.raises(ConfigError, match="pip install"):
        resolve_sizes(store)


def test_it_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "measure_room", lambda folder: Room(2**42, 2**42))
    assert resolve_sizes(StoreConfig()).arena_bytes == 64 * GIB


@pytest.mark.parametrize(
    ("store", "words"),
    [
        (StoreConfig(arena_bytes=51 * GIB), "/dev/shm"),
        (StoreConfig(arena_bytes=40 * GIB, tiers=(memory_tier(61 * GIB),)), "memory tiers"),
    ],
)
def test_more_than_is_free_is_refused(store: StoreConfig, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve_sizes(store)


def test_without_shared_memory_there_is_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> Room:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(sizes, "measure_room", fail)
    with pytest.raises(ConfigError, match=r"store\.enabled=false"):
        resolve_sizes(StoreConfig())


def disk_tier(path: Path, **changes: Any) -> StoreTierConfig:
    return StoreTierConfig(path=str(path), **changes)


def test_a_disk_must_hold_all_that_its_folders_may_grow_to(tmp_path: Path) -> None:
    check_disks(StoreConfig(tiers=(disk_tier(tmp_path / "new" / "a", capacity_bytes=2**20),)))
    with pytest.raises(ConfigError, match=r"store\.tiers 1.*are free"):
        check_disks(StoreConfig(tiers=(disk_tier(tmp_path, capacity_bytes=2**50),)))
    most = int(shutil.disk_usage(tmp_path).free * 0.6)
    halves = [disk_tier(tmp_path / name, capacity_bytes=most) for name in "ab"]
    with pytest.raises(ConfigError, match=r"store\.tiers 2"):
        check_disks(StoreConfig(tiers=tuple(halves)))
    assert list(tmp_path.iterdir()) == []


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError):
        check_disks(StoreConfig(tiers=(disk_tier(tmp_path / "file", capacity_bytes=2**20),)))
