"""The disk, or the file system of another host, that a tier's folder is on or would be made on."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

SEGMENT_PATTERN = "seg-*.pages"
MOUNTS = Path("/proc/self/mountinfo")
_SHARED = ("9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4")
_RARER = ("orangefs", "pvfs2", "smb3", "sshfs", "virtiofs", "wekafs")
NETWORK_KINDS = frozenset({*_SHARED, *_RARER})


class Disk(msgspec.Struct, frozen=True):
    """`existing` is the folder or the nearest one above it; the tier has `held_bytes` already."""

    existing: Path
    device: int
    kind: str
    free_bytes: int
    held_bytes: int

    @property
    def is_network(self) -> bool:
        """Whether the file system is another host's, as far as its name tells."""
        return self.kind.removeprefix("fuse.") in NETWORK_KINDS


def find_disk(folder: Path) -> Disk:
    """Where `folder` is, or would be made; OSError where it cannot be looked at."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    device, status = os.stat(existing).st_dev, os.statvfs(existing)
    return Disk(
        existing=existing,
        device=device,
        kind=_find_kind(device),
        free_bytes=status.f_bavail * status.f_frsize,
        held_bytes=sum(file.stat().st_size for file in folder.glob(SEGMENT_PATTERN)),
    )


def _find_kind(device: int) -> str:
    """What the file system with that number is called, empty where no mount has it."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines():
        # number and place, any fields, a dash, kind and source
        own, _, other = line.partition(" - ")
        if own.split()[2] == number:
            return other.split()[0]
    return ""
