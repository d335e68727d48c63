"""What a launch shows while it waits: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TextIO

import msgspec

REMIND_S = 15.0


class Row(msgspec.Struct, frozen=True):
    """One awaited process: where it stands, for how long, its newest log line, its log."""

    name: str
    stage: str
    since_s: float
    detail: str
    log: str


def format_row(row: Row) -> tuple[str, str]:
    """What is waited for and for how long, then where its log is."""
    waited = f"{row.name}: {row.stage} for {row.since_s:.0f} s"
    return (f"{waited}: {row.detail}" if row.detail else waited, f"    log: {row.log}")


class Reporter(Protocol):
    """Told about a launch: lines that stay, and rows of what is being waited for."""

    def say(self, line: str) -> None:
        """Print one line that stays."""

    def show(self, rows: Sequence[Row]) -> None:
        """The present rows; called about twice a second, with none when nothing is awaited."""

    def close(self) -> None:
        """Nothing more is shown."""


class SteadyReporter:
    """Another reporter for as long as its output can be written: a cluster outlives a terminal."""

    def __init__(self, inner: Reporter) -> None:
        self._inner = inner
        self._is_heard = True

    def say(self, line: str) -> None:
        self._try(lambda: self._inner.say(line))

    def show(self, rows: Sequence[Row]) -> None:
        self._try(lambda: self._inner.show(rows))

    def close(self) -> None:
        self._try(self._inner.close)

    def _try(self, call: Callable[[], None]) -> None:
        if not self._is_heard:
            return
        try:
            call()
        except OSError:
            self._is_heard = False


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
                for line in format_row(row):
                    self.say(line)
        # What is awaited no longer is news when it is awaited once more.
        self._stages = {row.name: row.stage for row in rows}
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
        from rich.console import Group
        from rich.text import Text

        lines = [line for row in rows for line in format_row(row)]
        # Plain text: a log line may hold what rich would read as markup.
        drawn = (Text(line, no_wrap=True, overflow="ellipsis") for line in lines)
        self._live.update(Group(*drawn), refresh=True)

    def close(self) -> None:
        self._live.stop()


def choose_reporter() -> Reporter:
    """A live table where standard output is a terminal that wants one."""
    wants_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    if sys.stdout.isatty() and not wants_plain:
        return LiveReporter()
    return PlainReporter(sys.stdout)
