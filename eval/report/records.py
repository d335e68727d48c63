"""What a report is made from, and what it hands out."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path

import msgspec

from bana.eval.runs import RunRecord
from bana.eval.summary import Comparison, MaxRate, Summary


class Origin(msgspec.Struct, frozen=True):
    """What is known about a run besides its measurements.

    `label` names it among other runs, `side` the system it measured where two are compared.
    `settings` are shown as they are, values of secrets hidden.
    """

    label: str = ""
    side: str = ""
    started_at: datetime.datetime | None = None
    settings: Mapping[str, object] = msgspec.field(default_factory=dict)


class StoredRun(msgspec.Struct, frozen=True):
    """One run with everything that its folder keeps; prompts are not kept."""

    record: RunRecord
    summary: Summary
    origin: Origin = Origin()


class RunFiles(msgspec.Struct, frozen=True):
    """Where a written run lies."""

    folder: Path
    requests: Path
    probes: Path
    samples: Path
    summary: Path
    page: Path
    llmd: Path


class ReportInput(msgspec.Struct, frozen=True):
    """What one page shows: a run, a load grid of several, or both sides of a comparison.

    `sides` names the systems in order, A first; unless told, by name. `max_rates` by side (""
    where there is one only). An empty `sentence` is taken from the run where there is one, else
    composed from comparisons and max rates.
    """

    runs: tuple[StoredRun, ...]
    max_rates: Mapping[str, MaxRate] = msgspec.field(default_factory=dict)
    comparisons: tuple[Comparison, ...] = ()
    sentence: str = ""
    sides: tuple[str, ...] = ()


class NumberTable(msgspec.Struct, frozen=True):
    """Numbers as text, for a terminal and for a page; the first column names the row."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
