"""The queue of the instance in columns, kept up to date rather than built for every decision."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bana.eval.simulator.jobs import Job, Stage
from bana.slo.order import QueueColumns

FIRST_ROWS = 64
Column = npt.NDArray[Any]


class WaitingTable:
    """Waiting and started requests, a row each; rows move when others leave.

    O(1) to add, change and remove. The columns handed out are views of the table: they hold only
    until it changes.
    """

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._rows: dict[int, int] = {}
        self._columns = _make_columns(FIRST_ROWS)
        self._started: dict[int, Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def started(self) -> int:
        """How many prompts are half done."""
        return len(self._started)

    def list_started(self) -> list[Job]:
        """The half-done prompts by arrival."""
        return sorted(self._started.values(), key=lambda job: job.index)

    def job_at(self, row: int) -> Job:
        """The request of a row."""
        return self._jobs[row]

    def find(self, index: int) -> Job | None:
        """The request of that number, None where it has no row."""
        row = self._rows.get(index)
        return None if row is None else self._jobs[row]

    def row_of(self, job: Job) -> int:
        """The row of a request."""
        return self._rows[job.index]

    def columns(self) -> QueueColumns:
        """All rows."""
        return self._cut(slice(0, len(self._jobs)))

    def choose_columns(self, jobs: list[Job]) -> QueueColumns:
        """The rows of these requests, in their order."""
        return self._cut([self._rows[job.index] for job in jobs])

    def add(self, job: Job, service_s: float) -> None:
        """A request queues."""
        row = len(self._jobs)
        if row == self._columns.sequence.size:
            self._columns = _double(self._columns)
        self._jobs.append(job)
        self._rows[job.index] = row
        columns = self._columns
        columns.sequence[row] = job.index
        columns.arrival_s[row] = job.budget.arrival_s
        columns.deadline_s[row] = job.budget.deadline_s
        columns.service_s[row] = service_s
        columns.prompt_tokens[row] = job.prompt
        columns.demoted[row] = job.demoted
        columns.started[row] = False

    def remove(self, job: Job) -> None:
        """A request waits no longer; the last row takes its place."""
        row, last = self._rows.pop(job.index), len(self._jobs) - 1
        columns = self._columns
        self._started.pop(job.index, None)
        moved = self._jobs.pop()
        if row == last:
            return
        self._jobs[row] = moved
        self._rows[moved.index] = row
        for column in _list_columns(columns):
            column[row] = column[last]

    def mark_started(self, job: Job) -> None:
        """Its first chunk is computed."""
        self._columns.started[self._rows[job.index]] = True
        job.stage = Stage.STARTED
        self._started[job.index] = job

    def mark_waiting(self, job: Job) -> None:
        """What was computed of it is lost."""
        self._columns.started[self._rows[job.index]] = False
        job.stage = Stage.WAITING
        del self._started[job.index]

    def mark_demoted(self, job: Job) -> None:
        """The order has given it up for now."""
        self._columns.demoted[self._rows[job.index]] = True
        job.demoted = True

    def predict(self, job: Job, service_s: float) -> None:
        """What is left of it is predicted anew."""
        self._columns.service_s[self._rows[job.index]] = service_s

    def _cut(self, rows: slice | list[int]) -> QueueColumns:
        return QueueColumns(*(column[rows] for column in _list_columns(self._columns)))


def _make_columns(rows: int) -> QueueColumns:
    return QueueColumns(
        sequence=np.zeros(rows, dtype=np.int64),
        arrival_s=np.zeros(rows),
        deadline_s=np.zeros(rows),
        service_s=np.zeros(rows),
        prompt_tokens=np.zeros(rows, dtype=np.int64),
        started=np.zeros(rows, dtype=np.bool_),
        demoted=np.zeros(rows, dtype=np.bool_),
    )


def _list_columns(columns: QueueColumns) -> tuple[Column, ...]:
    return (
        columns.sequence,
        columns.arrival_s,
        columns.deadline_s,
        columns.service_s,
        columns.prompt_tokens,
        columns.started,
        columns.demoted,
    )


def _double(columns: QueueColumns) -> QueueColumns:
    return QueueColumns(*(np.concatenate([c, np.zeros_like(c)]) for c in _list_columns(columns)))
