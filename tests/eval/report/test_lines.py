import hashlib
from pathlib import Path

import msgspec
import pytest

from bana.eval.report.lines import encode_json, read_lines, write_lines
from bana.slo.errors import ConfigError


class Row(msgspec.Struct, frozen=True):
    n: int
    text: str = ""


def test_lines_are_read_as_written(tmp_path: Path) -> None:
    rows = (Row(1), Row(2, "line\nbreak"))
    path = tmp_path / "rows"
    lines = write_lines(path, rows)
    assert lines.lines == 2
    assert lines.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert read_lines(path, Row, lines) == rows


def test_no_lines_are_a_file(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "rows", ())
    assert read_lines(tmp_path / "rows", Row, lines) == ()


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    write_lines(tmp_path / "rows", [Row(1)])
    with pytest.raises(FileExistsError):
        write_lines(tmp_path / "rows", [Row(2)])


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    lines = write_lines(path, [Row(1), Row(2)])
    path.write_bytes(b'{"n":1}\n{"n":2,"text":"\xff"}\n')
    with pytest.raises(ConfigError, match=r"line 2 of .* cannot be read"):
        read_lines(path, Row, lines)


def test_lone_surrogates_become_question_marks() -> None:
    assert msgspec.json.decode(encode_json({"a\ud800": ["\udfff", 1]})) == {"a?": ["?", 1]}
