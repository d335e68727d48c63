"""What an SGLang server that was killed leaves behind, and how to remove it.

SGLang makes its sockets from temporary files, and keeps load records and message queues in
shared memory; it ends its workers before they remove them. Each instance therefore has a
temporary folder of its own, in which it is noted whose shared memory to look for.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from bana.slo.errors import ConfigError

SHARED_MEMORY = Path("/dev/shm")
# A Unix socket's path has at most 107 bytes; the file's own name takes up to 20 of them.
MAX_FOLDER_BYTES = 87
_IPC = "ipc://"
_NOTES = "processes"
_PID = "pid="
_OWN_PREFIX = "sglang_loads_"


def temporary_folder(run_dir: Path, instance: str) -> Path:
    """Where the instance of that name keeps its temporary files."""
    return run_dir / f"{instance}.tmp"


def use_temporary_folder(folder: Path) -> None:
    """Have this process and its children keep temporary files in `folder`, emptied first.

    ConfigError when its path is too long for the sockets that SGLang makes in it.
    """
    if len(os.fsencode(folder)) > MAX_FOLDER_BYTES:
        raise ConfigError(
            f"run directory too long for sockets: {folder} has {len(os.fsencode(folder))} bytes, "
            f"allowed: {MAX_FOLDER_BYTES}; choose a shorter [launch] run_dir"
        )
    sweep(folder)
    # Compiled kernels are worth keeping from run to run.
    kept = Path(tempfile.gettempdir()) / f"torchinductor_{os.getuid()}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(kept))
    folder.mkdir(mode=0o700)
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None


def remove_endpoint(endpoint: str) -> None:
    """Remove the file of an ipc:// endpoint, which ZMQ leaves; other kinds have none."""
    if endpoint.startswith(_IPC):
        Path(endpoint.removeprefix(_IPC)).unlink(missing_ok=True)


def record_shared_memory(folder: Path, record: Path) -> None:
    """Note that a process is about to create `record`, so that `sweep` finds it later."""
    _note(folder, record.name)


def record_process(folder: Path, pid: int) -> None:
    """Note a process of the instance: SGLang stamps most of its shared memory with the pid."""
    _note(folder, f"{_PID}{pid}")


def list_shared_memory(folder: Path) -> tuple[Path, ...]:
    """The shared memory that exists of the processes noted in `folder`."""
    notes = folder / _NOTES
    lines = notes.read_text().split() if notes.is_file() else []
    # Nothing but names of SGLang's own is looked for, so a damaged list cannot name other files.
    named = [SHARED_MEMORY / Path(line).name for line in lines if line.startswith(_OWN_PREFIX)]
    pids = [line.removeprefix(_PID) for line in lines if line.startswith(_PID)]
    stamped = [
        path
        for pid in pids
        if pid.isdecimal()
        for path in sorted(SHARED_MEMORY.glob(f"sgl_shm_*_{pid}_*"))
    ]
    return tuple(path for path in (*named, *stamped) if path.is_file())


def sweep(folder: Path) -> tuple[Path, ...]:
    """Remove `folder` and the shared memory of the processes noted in it; what was removed.

    Only for an instance whose processes have all ended. Nothing there is nothing to do.
    """
    if not folder.is_dir():
        return ()
    found = list_shared_memory(folder)
    for path in found:
        path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    return (*found, folder)


def _note(folder: Path, line: str) -> None:
    with (folder / _NOTES).open("a") as file:
        file.write(f"{line}\n")
