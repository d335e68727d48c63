"""Progress of a run for people: one live line on a terminal, plain lines elsewhere.

A stream that can no longer be written to ends no run: what would be shown is dropped.
"""

from __future__ import annotations

import contextlib
import time
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from bana.eval.client.watch import Tally, Watch

PLAIN_INTERVAL_S = 10.0


def open_watch(stream: TextIO) -> Watch:
    """The watch that suits `stream`; NO_COLOR is honoured."""
    return BarWatch(Console(file=stream)) if stream.isatty() else LineWatch(stream)


class BarWatch:
    """A bar that is redrawn only when told to: a thread of its own would delay requests."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            auto_refresh=False,
        )
        self._task: TaskID | None = None

    def begin(self, label: str, total: int) -> None:
        with contextlib.suppress(OSError):
            self._task = self._bar.add_task(label, total=total, note="")
            self._bar.start()
            self._bar.refresh()

    def show(self, tally: Tally) -> None:
        if self._task is None:
            return
        with contextlib.suppress(OSError):
            self._bar.update(self._task, completed=tally.done, note=describe_tally(tally))
            self._bar.refresh()

    def say(self, line: str) -> None:
        with contextlib.suppress(OSError):
            self._bar.console.print(line, markup=False, highlight=False)

    def end(self) -> None:
        if self._task is None:
            return
        with contextlib.suppress(OSError):
            self._bar.refresh()
            self._bar.stop()
            self._bar.remove_task(self._task)
        self._task = None


class LineWatch:
    """A line at the beginning, one every PLAIN_INTERVAL_S, and one at the end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._label = ""
        self._total = 0
        self._said_s = 0.0
        self._latest: Tally | None = None

    def begin(self, label: str, total: int) -> None:
        self._label, self._total, self._latest = label, total, None
        self._said_s = time.monotonic()
        self.say(f"{label}: {total} requests")

    def show(self, tally: Tally) -> None:
        self._latest = tally
        if time.monotonic() - self._said_s >= PLAIN_INTERVAL_S:
            self._said_s = time.monotonic()
            self._say_tally(tally)

    def say(self, line: str) -> None:
        with contextlib.suppress(OSError):
            print(line, file=self._stream, flush=True)

    def end(self) -> None:
        if self._latest is not None:
            self._say_tally(self._latest)

    def _say_tally(self, tally: Tally) -> None:
        self.say(f"{self._label}: {tally.done}/{self._total} done, {describe_tally(tally)}")


def describe_tally(tally: Tally) -> str:
    """What the bar itself does not show."""
    words = [f"{tally.sent - tally.done} out", f"{tally.failed} failed"]
    if tally.left_s > 0:
        words.append(f"{tally.left_s:.0f} s left")
    return ", ".join(words)
