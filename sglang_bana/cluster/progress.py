"""What a launch shows while it waits: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Protocol, TextIO

import msgspec

REMIND_S = 15.0
DETAIL_WIDTH = 60


class Row(msgspec.Struct, frozen=True):
    """One awaited process: where it stands, for how long, its newest log line, its log."""

    name: str
    stage: str
    since_s: float
    detail: str
    log: str


class Reporter(Protocol):
    """Told about a launch: lines that stay, and rows of what is being waited for."""

    def say(self, line: str) -> None:
        """Print one line that stays."""

    def show(self, rows: Sequence[Row]) -> None:
        """The present rows; called about twice a second, with none when nothing is awaited."""

    def close(self) -> None:
        """Nothing more is shown."""


class PlainReporter:
    """Lines on a stream: one for each change, and a reminder every REMIND_S."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stages: dict[str, str] = {}
        self._reminded_s = time.monotonic()

    def say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)

    def show(self, rows: Sequence[Row]) -> None:
        is_due = time.monotonic() - self._reminded_s >= REMIND_S
        for row in rows:
            is_news = self._stages.get(row.name) != row.stage
            if is_news:
                self.say(f"{row.name}: {row.stage}")
            elif is_due:
                self.say(f"{row.name}: {row.stage} for {row.since_s:.0f} s: {row.detail}")
                self.say(f"    log: {row.log}")
            self._stages[row.name] = row.stage
        if is_due:
            self._reminded_s = time.monotonic()

    def close(self) -> None:
        self._stream.flush()


class LiveReporter:
    """A table that is redrawn in place; no thread of its own draws it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def say(self, line: str) -> None:
        self._console.print(line, markup=False)

    def show(self, rows: Sequence[Row]) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for row in rows:
            detail = row.detail[:DETAIL_WIDTH]
            cells = (row.name, row.stage, f"{row.since_s:.0f} s", detail, row.log)
            # A log line may hold what rich would read as markup.
            table.add_row(*(Text(cell) for cell in cells))
        self._live.update(table, refresh=True)

    def close(self) -> None:
        self._live.stop()


def choose_reporter() -> Reporter:
    """A live table where standard output is a terminal that wants one."""
    wants_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    if sys.stdout.isatty() and not wants_plain:
        return LiveReporter()
    return PlainReporter(sys.stdout)
