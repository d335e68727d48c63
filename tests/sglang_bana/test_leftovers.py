"""A killed instance's temporary folder and shared memory are found and removed, nothing else."""

from __future__ import annotations

import os
import tempfile
import uuid
from pathlib import Path

import pytest

from bana.slo.errors import ConfigError
from sglang_bana import leftovers


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "shm").mkdir()
    made = leftovers.temporary_folder(tmp_path, "i0")
    made.mkdir()
    return made


def test_recorded_shared_memory_is_swept_with_the_folder(folder: Path) -> None:
    ours, other = (leftovers.SHARED_MEMORY / f"sglang_loads_{n}.shm" for n in ("ours", "other"))
    ours.touch()
    other.touch()
    leftovers.record_shared_memory(folder, ours)
    assert leftovers.sweep(folder) == (ours, folder)
    assert (ours.exists(), other.exists(), folder.exists()) == (False, True, False)


def test_shared_memory_stamped_with_a_noted_process_is_swept(folder: Path) -> None:
    ours, other = (leftovers.SHARED_MEMORY / f"sgl_shm_mq_{pid}_0a1b" for pid in (41, 4))
    ours.touch()
    other.touch()
    leftovers.record_process(folder, 41)
    assert leftovers.list_shared_memory(folder) == (ours,)
    assert leftovers.sweep(folder) == (ours, folder)
    assert other.exists()


def test_a_record_that_was_never_created_is_no_leftover(folder: Path) -> None:
    leftovers.record_shared_memory(folder, leftovers.SHARED_MEMORY / "sglang_loads_never.shm")
    assert leftovers.sweep(folder) == (folder,)


def test_a_damaged_list_cannot_name_other_files(folder: Path) -> None:
    precious = leftovers.SHARED_MEMORY.parent / "precious"
    precious.touch()
    for name in ("../precious", "sglang_loads_/../../precious", "pid=*", "pid=../"):
        with (folder / "processes").open("a") as file:
            file.write(f"{name}\n")
    assert leftovers.sweep(folder) == (folder,)
    assert precious.exists()


def test_nothing_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert leftovers.sweep(tmp_path / "missing.tmp") == ()


def test_temporary_files_go_to_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(name, os.environ.get(name, "/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        folder = Path(short) / "i0.tmp"
        folder.mkdir()
        (folder / "of-the-previous-life").touch()
        leftovers.use_temporary_folder(folder)
        assert tempfile.gettempdir() == str(folder)
        assert list(folder.iterdir()) == []


def test_a_path_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"too long for sockets.*allowed: 87"):
        leftovers.use_temporary_folder(tmp_path / ("x" * 100))


def test_endpoint_files_are_removed_and_other_endpoints_are_not_files(tmp_path: Path) -> None:
    socket = tmp_path / f"{uuid.uuid4().hex}.load"
    socket.touch()
    leftovers.remove_endpoint(f"ipc://{socket}")
    leftovers.remove_endpoint("tcp://127.0.0.1:9")
    assert not socket.exists()
