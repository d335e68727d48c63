"""What an SGLang server that was killed leaves behind, and how to remove it.

SGLang names its sockets after temporary files and its load records in shared memory after
those. Each instance therefore gets a temporary folder of its own, which names all of it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from bana.slo.errors import ConfigError

SHARED_MEMORY = Path("/dev/shm")
# A Unix socket's path has at most 107 bytes; the file's own name takes up to 20 of them.
_MAX_FOLDER_BYTES = 87


def temporary_folder(run_dir: Path, instance: str) -> Path:
    """Where the instance of that name keeps its temporary files."""
    return run_dir / f"{instance}.tmp"


def use_temporary_folder(folder: Path) -> None:
    """Have this process and its children keep temporary files in `folder`, emptied first.

    ConfigError when its path is too long for the sockets that SGLang makes in it.
    """
    if len(os.fsencode(folder)) > _MAX_FOLDER_BYTES:
        raise ConfigError(
            f"run directory too long for sockets: {folder} has {len(os.fsencode(folder))} bytes, "
            f"allowed: {_MAX_FOLDER_BYTES}; choose a shorter [launch] run_dir"
        )
    sweep(folder)
    # Compiled kernels are worth keeping from run to run.
    kept = Path(tempfile.gettempdir()) / f"torchinductor_{os.getuid()}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(kept))
    folder.mkdir(mode=0o700)
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None


def sweep(folder: Path) -> tuple[Path, ...]:
    """Remove `folder` and the shared memory named after its files; what was removed.

    Only for an instance whose processes have all ended. Nothing there is nothing to do.
    """
    if not folder.is_dir():
        return ()
    removed = []
    for name in sorted(entry.name for entry in folder.iterdir()):
        for record in SHARED_MEMORY.glob(f"sglang_loads_{name}_*.shm"):
            record.unlink(missing_ok=True)
            removed.append(record)
    shutil.rmtree(folder, ignore_errors=True)
    return (*removed, folder)
