"""Logs: bounded while they are written, and what their end says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sglang_bana.cluster.logs import LINE_CHARACTERS, cut_log, find_errors, open_log, read_lines


def test_cutting_keeps_the_newest_part_while_a_writer_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    fd = open_log(path)
    os.write(fd, b"old\n" * 1000 + b"new\n")
    cut_log(path, 2000)
    os.write(fd, b"newest\n")
    os.close(fd)
    assert path.stat().st_size <= 1000 + len("newest\n")
    assert read_lines(path)[-2:] == ("new", "newest")


def test_a_log_within_its_bound_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a\nb\n")
    cut_log(path, 4)
    assert path.read_text() == "a\nb\n"
    cut_log(tmp_path / "none", 4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\n\nb\n", ("a", "b")),
        ("0%\r50%\r100%\n", ("100%",)),
        ("x" * 999, ("x" * LINE_CHARACTERS,)),
        ("", ()),
    ],
)
def test_lines_are_as_a_terminal_shows_them(tmp_path: Path, text: str, expected) -> None:
    path = tmp_path / "log"
    path.write_bytes(text.encode())
    assert read_lines(path) == expected


def test_errors_are_found_among_other_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        "INFO: fine\nTraceback (most recent call last):\n  File x\n"
        "torch.OutOfMemoryError: too large\nbana: instance-0 failed\n[rank0] ERROR: gone\nbye\n"
    )
    assert find_errors(path) == ("torch.OutOfMemoryError: too large", "[rank0] ERROR: gone")


def test_without_errors_the_last_lines_are_told(tmp_path: Path) -> None:
    path = tmp_path / "log"
    served = 'INFO: 127.0.0.1 - "GET /ready HTTP/1.1" 200 OK\n'
    path.write_text("".join(f"{n}\n" for n in range(9)) + 9 * served)
    assert find_errors(path) == ("4", "5", "6", "7", "8")


def test_only_this_life_counts(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("ValueError: of an earlier life\n")
    offset = path.stat().st_size
    with path.open("a") as log:
        log.write("killed\n")
    assert find_errors(path, offset) == ("killed",)
