"""How the fetching of an embedded model is shown: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sglang_bana.cluster.models import Progress, Stage

if TYPE_CHECKING:
    import rich.progress


class PlainFetch:
    """A line for each stage."""

    def __init__(self) -> None:
        self._stage: Stage | None = None

    def report(self, stage: Stage, done_bytes: int, total_bytes: int) -> None:
        if stage is not self._stage:
            self._stage = stage
            size = f" ({total_bytes / 1e6:.0f} MB)" if total_bytes else ""
            print(f"model: {stage.value}{size}", flush=True)


class BarFetch:
    """A progress bar, from one stage to the next."""

    def __init__(self, bar: rich.progress.Progress) -> None:
        self._bar = bar
        self._stage: Stage | None = None
        self._task: rich.progress.TaskID | None = None

    def report(self, stage: Stage, done_bytes: int, total_bytes: int) -> None:
        if stage is not self._stage or self._task is None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(f"model: {stage.value}", total=total_bytes or None)
            self._stage = stage
        self._bar.update(self._task, completed=done_bytes, total=total_bytes or None)


@contextmanager
def show_fetch() -> Iterator[Progress]:
    """A progress to pass to the fetching; what it drew is gone afterwards."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        yield PlainFetch()
        return
    from rich.progress import Progress as Bars

    with Bars(transient=True) as bars:
        yield BarFetch(bars)
