"""Whether what a store would take is there, asked before any of it is taken."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from bana.radix_global.memory_room import Room, measure_room
from bana.slo.errors import ConfigError
from sglang_bana.config import StoreConfig, TierKind
from sglang_bana.store.building import locate_tier, memory_bytes
from sglang_bana.store.disks import find_disk
from sglang_bana.store.mooncake import require_package

SHARED_MEMORY = Path("/dev/shm")
ARENA_SHARE = 10
MAX_AUTOMATIC_BYTES = 64 * 2**30


def resolve_sizes(config: StoreConfig) -> StoreConfig:
    """The configuration with the arena's size in it; ConfigError where something does not fit."""
    if any(tier.kind is TierKind.MOONCAKE for tier in config.tiers):
        require_package()
    try:
        room = measure_room(SHARED_MEMORY)
    except OSError as error:
        raise ConfigError(
            f"{SHARED_MEMORY}: {error.strerror}; the store needs shared memory: mount it, or set "
            "store.enabled=false"
        ) from error
    arena_bytes = choose_arena_bytes(config, room)
    held = sum(map(memory_bytes, config.tiers))
    if arena_bytes > room.file_system_bytes:
        raise ConfigError(
            f"store.arena_bytes={arena_bytes}, allowed: <= {room.file_system_bytes}, which is free "
            f"in {SHARED_MEMORY}; lower it, or enlarge that (containers: --shm-size)"
        )
    if arena_bytes + held > room.memory_bytes:
        raise ConfigError(
            f"the store's arena of {arena_bytes} bytes and its memory tiers of {held}, allowed: <= "
            f"{room.memory_bytes} together, which is free; lower store.arena_bytes or their "
            "capacity_bytes"
        )
    check_disks(config)
    return msgspec.structs.replace(config, arena_bytes=arena_bytes)


def choose_arena_bytes(config: StoreConfig, room: Room) -> int:
    """How large the arena is to be: as configured, or a capped part of what is free."""
    return config.arena_bytes or min(room.free_bytes // ARENA_SHARE, MAX_AUTOMATIC_BYTES)


def check_disks(config: StoreConfig) -> None:
    """ConfigError where the disks cannot hold the capacities of the directories on them."""
    wanted: dict[int, int] = {}
    for number, tier in enumerate(config.tiers, 1):
        if tier.kind is not TierKind.DIRECTORY:
            continue
        where = f"store.tiers {number}"
        folder = locate_tier(tier, where)
        try:
            disk = find_disk(folder)
        except OSError as error:
            raise ConfigError(f"{where}: {folder}: {error.strerror}; name another path") from error
        if not os.access(disk.existing, os.W_OK | os.X_OK):
            raise ConfigError(f"{where}: {disk.existing} cannot be written to; name another path")
        own = tier.capacity_bytes - disk.held_bytes
        wanted[disk.device] = wanted.get(disk.device, 0) + own
        if wanted[disk.device] > disk.free_bytes:
            raise ConfigError(
                f"{where}: capacity_bytes={tier.capacity_bytes} at {folder}, which together with "
                f"the tiers before it needs {wanted[disk.device]} bytes more of a disk where "
                f"{disk.free_bytes} are free; lower it, or name another disk"
            )
