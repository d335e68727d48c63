"""The log file of one child: bounded while it is written, and what its end says about a crash."""

from __future__ import annotations

import os
import re
from pathlib import Path

TAIL_BYTES = 65_536
ERROR_LINES = 5
LINE_CHARACTERS = 200
_ERROR = re.compile(r"(^|\s)(error|fatal|[\w.]*(Error|Exception|Interrupt))\b[:\]]", re.IGNORECASE)


def open_log(path: Path) -> int:
    """A descriptor that appends to `path`, so that cutting the file moves no writer."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def cut_log(path: Path, max_bytes: int) -> None:
    """Keep about half of `max_bytes` once `path` has grown beyond it; the older half goes.

    What is written between reading and cutting is lost: at most a few lines.
    """
    try:
        size = path.stat().st_size
    except OSError:
        return
    if size <= max_bytes:
        return
    kept = read_end(path, max_bytes // 2)
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(kept)


def read_end(path: Path, count: int, since: int = 0) -> bytes:
    """The last `count` bytes of `path` that lie behind offset `since`; empty without a file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = since if since <= size else 0
            file.seek(max(begin, size - count))
            return file.read()
    except OSError:
        return b""


def read_lines(path: Path, since: int = 0) -> tuple[str, ...]:
    """The newest lines that are not blank, oldest first, each cut to LINE_CHARACTERS."""
    text = read_end(path, TAIL_BYTES, since).decode("utf-8", errors="replace")
    # Progress bars rewrite their line with carriage returns; only its last state counts.
    lines = (line.rstrip().rpartition("\r")[2].strip() for line in text.split("\n"))
    return tuple(line[:LINE_CHARACTERS] for line in lines if line)


def find_errors(path: Path, since: int = 0) -> tuple[str, ...]:
    """The last lines that name an error, else simply the last ones: at most ERROR_LINES.

    Requests that were answered explain nothing and do not count.
    """
    lines = [line for line in read_lines(path, since) if not line.endswith(" 200 OK")]
    named = [line for line in lines if _ERROR.search(line)]
    return tuple(dict.fromkeys(named[-ERROR_LINES:] or lines[-ERROR_LINES:]))
