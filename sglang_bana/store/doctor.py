"""What is wrong with a store as it is configured: its arena's memory, and each tier's folder."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from bana.radix_global.memory_room import measure_room
from bana.radix_global.stores.folder import FOLDER_MODE
from bana.slo.errors import ConfigError
from sglang_bana.cluster.finding import Finding, Severity
from sglang_bana.config import StoreConfig, TierKind
from sglang_bana.store.building import locate_tier, memory_bytes, mooncake_options, tier_name
from sglang_bana.store.disks import Disk, find_disk
from sglang_bana.store.mooncake import require_package
from sglang_bana.store.mooncake_options import MooncakeOptions
from sglang_bana.store.sizes import SHARED_MEMORY, choose_arena_bytes

GIB = 2**30
CONNECT_TIMEOUT_S = 2.0
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


def examine_store(config: StoreConfig) -> tuple[Finding, ...]:
    """A finding for the arena and one for each tier; none where no store is configured."""
    if not (config.enabled or config.tiers):
        return ()
    return (examine_arena(config), *examine_tiers(config))


def examine_arena(config: StoreConfig) -> Finding:
    """Do the arena and the memory tiers fit into what is free?"""
    name = "store arena"
    try:
        room = measure_room(SHARED_MEMORY)
    except OSError as error:
        remedy = "mount a tmpfs there (containers: --shm-size), or --set store.enabled=false"
        return Finding(name, Severity.BAD, f"{SHARED_MEMORY}: {error.strerror}", "", remedy)
    arena_bytes = choose_arena_bytes(config, room)
    held = sum(map(memory_bytes, config.tiers))
    wanted = f"{_gib(arena_bytes)} of arena and {_gib(held)} of memory tiers"
    evidence = (
        f"{wanted}; free: {_gib(room.file_system_bytes)} in {SHARED_MEMORY}, "
        f"{_gib(room.memory_bytes)} in memory and its control groups"
    )
    if arena_bytes > room.file_system_bytes:
        remedy = "lower store.arena_bytes, or containers: --shm-size"
        return Finding(name, Severity.BAD, evidence, f"{SHARED_MEMORY} is small", remedy)
    if arena_bytes + held > room.memory_bytes:
        remedy = "lower store.arena_bytes or the memory tiers' capacity_bytes"
        cause = "other processes, a store that runs already among them, or a limit"
        return Finding(name, Severity.BAD, evidence, cause, remedy)
    return Finding(name, Severity.OK, evidence)


def examine_tiers(config: StoreConfig) -> Iterator[Finding]:
    """Can each folder be had, and may all of them grow to their capacities?"""
    wanted: dict[int, int] = {}
    neighbours: dict[int, str] = {}
    for number, tier in enumerate(config.tiers, 1):
        if tier.kind is TierKind.MOONCAKE:
            name = f"store tier {tier_name(tier, number)}"
            yield examine_pool(name, mooncake_options(tier, f"store.tiers {number}"))
        if tier.kind is not TierKind.DIRECTORY:
            continue
        name, folder = f"store tier {tier_name(tier, number)}", locate_tier(tier, "")
        try:
            disk = find_disk(folder)
            trouble = _judge_folder(name, folder, disk)
        except OSError as error:
            evidence = f"{folder}: {error.strerror}"
            yield Finding(name, Severity.BAD, evidence, "", f"store.tiers {number}: another path")
            continue
        wanted[disk.device] = wanted.get(disk.device, 0) + tier.capacity_bytes - disk.held_bytes
        yield trouble or _judge_room(name, folder, disk, wanted[disk.device], neighbours)
        neighbours.setdefault(disk.device, name)


def examine_pool(name: str, options: MooncakeOptions) -> Finding:
    """Is Mooncake installed, and does its master answer?"""
    try:
        require_package()
        with socket.create_connection(options.address, CONNECT_TIMEOUT_S):
            evidence = f"mooncake master {options.master} answers"
    except ConfigError as error:
        remedy = "pip install 'bana[mooncake]', or remove the tier"
        return Finding(name, Severity.BAD, str(error), "an optional dependency", remedy)
    except OSError as error:
        evidence = f"mooncake master {options.master}: {error}"
        remedy = "start mooncake_master there, or correct options.master"
        return Finding(name, Severity.BAD, evidence, "not started, or another port", remedy)
    if options.address[0] in LOOPBACK:
        return Finding(name, Severity.OK, evidence)
    cause = "Mooncake asks for no key: whoever reaches its ports can read and replace pages"
    remedy = "keep them in a network of your own"
    return Finding(name, Severity.WARNING, evidence, cause, remedy)


def _judge_folder(name: str, folder: Path, disk: Disk) -> Finding | None:
    """What keeps the folder from being used or made."""
    if disk.existing == folder:
        status = folder.stat()
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISDIR(status.st_mode) and not folder.is_symlink():
            if status.st_uid == os.geteuid() and not mode & ~FOLDER_MODE:
                return None
            evidence = f"{folder}: owner {status.st_uid}, mode {mode:o} (at most {FOLDER_MODE:o})"
            remedy = f"chmod {FOLDER_MODE:o} it, as its owner, or name another path"
            return Finding(name, Severity.BAD, evidence, "others could write pages", remedy)
        evidence = f"{folder}: no folder of its own"
        return Finding(name, Severity.BAD, evidence, "a file or a link", "name another path")
    if disk.existing != folder.parent:
        evidence, remedy = f"{folder.parent}: there is no such folder", f"mkdir -p {folder.parent}"
        return Finding(name, Severity.BAD, evidence, "not mounted, or a wrong path", remedy)
    if not (disk.existing.is_dir() and os.access(disk.existing, os.W_OK | os.X_OK)):
        evidence = f"{folder}: cannot be made in {disk.existing}"
        return Finding(name, Severity.BAD, evidence, "another owner", "name another path")
    return None


def _judge_room(
    name: str, folder: Path, disk: Disk, wanted_bytes: int, neighbours: dict[int, str]
) -> Finding:
    kind = f"{disk.kind or 'an unknown file system'}{', of another host' * disk.is_network}"
    evidence = (
        f"{folder}: {_gib(disk.free_bytes)} free (>= {_gib(max(0, wanted_bytes))} until the tiers "
        f"there are full), {kind}"
    )
    if wanted_bytes > disk.free_bytes:
        remedy = "lower the tier's capacity_bytes, or name another disk"
        return Finding(name, Severity.BAD, evidence, "the disk is too small or full", remedy)
    if disk.device in neighbours:
        evidence = f"{evidence}; {neighbours[disk.device]} is on the same one"
        remedy = "give each tier a disk of its own, or make them one tier"
        cause = "two tiers on one disk share its speed, and fail together"
        return Finding(name, Severity.WARNING, evidence, cause, remedy)
    return Finding(name, Severity.OK, evidence)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB"
