"""The lines of a text file written by others, with their place; what is no text is refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bana.slo.errors import ConfigError

MAX_LINE_BYTES = 64 * 2**20
MAX_LINES = 2_000_000


class Line(msgspec.Struct, frozen=True):
    """One line that is not blank, without its end."""

    path: str
    number: int
    text: str

    def refuse(self, problem: str) -> ConfigError:
        """An error that says where the line is and what is wrong with it."""
        return ConfigError(f"{self.path}:{self.number}: {problem}")


def read_lines(path: Path) -> Iterator[Line]:
    """Lines that are not blank, in order; ConfigError for what cannot be read as text."""
    try:
        with path.open("rb") as file:
            for number in itertools.count(1):
                raw = file.readline(MAX_LINE_BYTES + 1)
                if not raw:
                    return
                line = Line(str(path), number, _decode(raw, path, number))
                if line.text:
                    yield line
    except OSError as error:
        raise ConfigError(
            f"cannot read {str(path)!r}: {error.strerror}; name a readable file"
        ) from error


def _decode(raw: bytes, path: Path, number: int) -> str:
    place = f"{path}:{number}"
    if len(raw) > MAX_LINE_BYTES:
        raise ConfigError(f"{place}: longer than {MAX_LINE_BYTES} bytes; is this a text file?")
    if number > MAX_LINES:
        raise ConfigError(f"{place}: more than {MAX_LINES} lines; cut the file")
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place}: no UTF-8 text ({error.reason}); is this the file?") from error
    return text.strip()
