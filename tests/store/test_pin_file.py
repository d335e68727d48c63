"""What is pinned, in a file that may have been anybody's."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sglang_bana.store import pin_file
from sglang_bana.store.clock import RealClock
from sglang_bana.store.pin_file import PinFile

DEADLINE_S = 20.0
PINS = (b"k" * 16, bytes(range(48)))


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def open_file(tmp_path: Path, said: list[str]) -> Iterator[Callable[..., PinFile]]:
    """A function: a folder in, or the usual one, a PinFile there out."""
    opened: list[PinFile] = []

    def open_one(folder: Path = tmp_path) -> PinFile:
        opened.append(PinFile(folder / "store.pins", RealClock(), said.append))
        return opened[-1]

    yield open_one
    for each in opened:
        assert each.close(DEADLINE_S)


def test_the_newest_pins_outlive_their_writer(
    open_file: Callable[[], PinFile], tmp_path: Path, said: list[str]
) -> None:
    first = open_file()
    assert first.load() == ()
    first.save(PINS[:1])
    first.save(PINS)
    assert first.close(DEADLINE_S)
    assert open_file().load() == PINS
    assert (tmp_path / "store.pins").stat().st_mode & 0o077 == 0
    assert said == []


def test_without_pins_there_is_no_file(open_file: Callable[[], PinFile], tmp_path: Path) -> None:
    first = open_file()
    first.save(PINS)
    first.close(DEADLINE_S)
    second = open_file()
    second.save(())
    assert second.close(DEADLINE_S)
    assert list(tmp_path.iterdir()) == []


KEY = base64.b64encode(b"k" * 16).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0\0\0",
        "[]",
        json.dumps({"version": 2, "pins": []}),
        json.dumps({"version": 1, "pins": [KEY], "more": 1}),
        json.dumps({"version": 1, "pins": [KEY[:-4]]}),
        json.dumps({"version": 1, "pins": [""]}),
        json.dumps({"version": 1, "pins": ["*"]}),
        json.dumps({"version": 1, "pins": [KEY] * 4097}),
        "[" * 100_000,
    ],
)
def test_a_bad_file_is_told_and_set_aside(
    open_file: Callable[[], PinFile], tmp_path: Path, said: list[str], text: str
) -> None:
    (tmp_path / "store.pins").write_text(text)
    assert open_file().load() == ()
    assert "set aside" in said[0]
    assert [path.name for path in tmp_path.iterdir()] == ["store.pins.bad"]


def test_a_link_a_pipe_and_a_giant_are_not_read(
    open_file: Callable[[], PinFile],
    tmp_path: Path,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, elsewhere = tmp_path / "store.pins", tmp_path / "elsewhere"
    elsewhere.write_text(json.dumps({"version": 1, "pins": [KEY]}))
    path.symlink_to(elsewhere)
    assert open_file().load() == ()
    os.mkfifo(path)
    assert open_file().load() == ()
    monkeypatch.setattr(pin_file, "MAX_FILE_BYTES", 10)
    elsewhere.rename(path)
    assert open_file().load() == ()
    assert len(said) == 3


def test_a_folder_that_is_gone_is_told(
    open_file: Callable[..., PinFile], tmp_path: Path, said: list[str]
) -> None:
    pins = open_file(tmp_path / "gone")
    pins.save(PINS)
    assert pins.close(DEADLINE_S)
    assert "does not outlive the store" in said[0]


def test_more_keys_than_may_be_read_again_are_not_written(
    open_file: Callable[[], PinFile],
    tmp_path: Path,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pin_file, "MAX_KEYS_BYTES", 47)
    pins = open_file()
    pins.save(PINS)
    assert pins.close(DEADLINE_S)
    assert "47 bytes of keys" in said[0]
    assert list(tmp_path.iterdir()) == []
