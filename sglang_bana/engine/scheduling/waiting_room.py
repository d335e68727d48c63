"""The waiting requests in columns, so that ten thousand of them are seen in one pass.

A request is seated when it enters the queue and keeps its slot until it enters again; a slot
is taken back when room is needed and its request waits no more.

    queue   [r7, r2, r9 …]  each knows its slot
    columns  arrival │ deadline │ new tokens │ prefix │ started │ demoted   one row a slot
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bana.slo.budget import Budget, BudgetOutcome
from bana.slo.order import QueueColumns
from bana.slo.steps import StepModel

FIRST_SLOTS = 256

ROW = np.dtype(
    [
        ("sequence", np.int64),
        ("arrival_s", np.float64),
        ("deadline_s", np.float64),
        ("prompt_tokens", np.int64),
        ("prefix_tokens", np.int64),
        ("started", np.bool_),
        ("demoted", np.bool_),
    ]
)
Rows: TypeAlias = npt.NDArray[Any]
Slots: TypeAlias = npt.NDArray[np.int64]


class Standing:
    """What bana knows about one request of an engine: its budget, its slot and its progress.

    `lock` holds the computed prefix of a request that yielded, None for any other one. `outcome`
    is set when the request has finished.
    """

    __slots__ = (
        "budget",
        "first_token_s",
        "is_admitted",
        "lock",
        "outcome",
        "sequence",
        "slot",
    )

    def __init__(self, budget: Budget, sequence: int) -> None:
        self.budget = budget
        self.sequence = sequence
        self.slot = -1
        self.lock: Any = None
        self.is_admitted = False
        self.first_token_s: float | None = None
        self.outcome: BudgetOutcome | None = None


class WaitingRoom:
    """Columns over slots. O(1) to seat amortised, O(rows) with small constants to view."""

    def __init__(self) -> None:
        self._rows: Rows = np.zeros(FIRST_SLOTS, ROW)
        self._free = list(range(FIRST_SLOTS))

    def seat(self, standing: Standing, present: Callable[[], Iterable[Standing]]) -> None:
        """Give `standing` a slot; `present` tells who keeps theirs, asked when room is short."""
        if not self._free:
            self._make_room({other.slot for other in present()})
        slot = self._free.pop()
        standing.slot = slot
        budget = standing.budget
        self._rows[slot] = (standing.sequence, budget.arrival_s, budget.deadline_s, 1, 0, 0, 0)

    def measure(self, slot: int, prompt_tokens: int, prefix_tokens: int) -> None:
        """Note how long the prompt is and how much of it is cached now; one token is computed."""
        self._rows["prompt_tokens"][slot] = prompt_tokens
        self._rows["prefix_tokens"][slot] = max(0, min(prefix_tokens, prompt_tokens - 1))

    def mark_started(self, slot: int) -> None:
        """The request has computed chunks. One that was demoted stays so."""
        self._rows["started"][slot] = True

    def mark_fresh(self, slot: int) -> None:
        """The request's computed chunks were given up."""
        self._rows["started"][slot] = False

    def demote(self, slots: Slots) -> None:
        """Set the requests in these slots behind the others."""
        self._rows["demoted"][slots] = True

    def new_tokens(self, slot: int) -> int:
        """Prompt tokens that are still to be computed, as last measured."""
        return int(self._rows["prompt_tokens"][slot] - self._rows["prefix_tokens"][slot])

    def prefix_tokens(self, slot: int) -> int:
        """Prompt tokens that need no computing, as last measured."""
        return int(self._rows["prefix_tokens"][slot])

    def sum_new_tokens(self, slots: Slots, page_tokens: int) -> int:
        """Prompt tokens still to be computed, each prompt in whole pages, as SGLang charges it."""
        rows = self._rows[slots]
        new = rows["prompt_tokens"] - rows["prefix_tokens"]
        return int((-(-new // page_tokens) * page_tokens).sum())

    def view(self, slots: Slots, model: StepModel, chunk_tokens: int) -> QueueColumns:
        """The rows of these slots, with what is left of each prompt priced by `model`."""
        rows = self._rows[slots]
        prefix = rows["prefix_tokens"]
        new = rows["prompt_tokens"] - prefix
        return QueueColumns(
            sequence=rows["sequence"],
            arrival_s=rows["arrival_s"],
            deadline_s=rows["deadline_s"],
            service_s=model.estimate_prefills_s(new, prefix, chunk_tokens),
            prompt_tokens=rows["prompt_tokens"],
            started=rows["started"],
            demoted=rows["demoted"],
        )

    def _make_room(self, kept: set[int]) -> None:
        size = len(self._rows)
        self._free = [slot for slot in range(size) if slot not in kept]
        if len(self._free) < size // 2:
            self._rows = np.concatenate([self._rows, np.zeros(size, ROW)])
            self._free.extend(range(size, 2 * size))


def list_slots(standings: Iterable[Standing], count: int) -> Slots:
    """The slots of `count` standings, in their order."""
    return np.fromiter((standing.slot for standing in standings), np.int64, count)
