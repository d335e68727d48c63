"""Where and from which source a figure was taken, without host names or paths."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import msgspec
import psutil

PACKAGES = ("bana", "sglang", "torch", "transformers", "aiohttp", "uvloop", "sglang-router")
GIT_TIMEOUT_S = 20.0


class Source(msgspec.Struct, frozen=True):
    """The commit as reports name it, and a digest of what differs from it."""

    commit: str
    digest: str


def describe_machine() -> dict[str, object]:
    """Cores, processor, memory and versions of the machine this process runs on."""
    return {
        "cpu_model": _read_cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: _read_version(name) for name in PACKAGES},
    }


def read_source() -> Source:
    """Commit of the checkout that this file is tracked in.

    `+dirty` where tracked files were changed; `unknown` outside git or without git.
    """
    here = Path(__file__).resolve()
    try:
        _ask_git(here.parent, "ls-files", "--error-unmatch", here.name)
        commit = _ask_git(here.parent, "rev-parse", "HEAD").strip()
        changes = _ask_git(here.parent, "diff", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return Source("unknown", "")
    if not changes:
        return Source(commit, "")
    return Source(f"{commit}+dirty", hashlib.sha256(changes.encode()).hexdigest())


def _ask_git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words],
        capture_output=True,
        check=True,
        timeout=GIT_TIMEOUT_S,
    )
    return done.stdout.decode(errors="replace")


def _read_cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or "unknown"


def _read_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
