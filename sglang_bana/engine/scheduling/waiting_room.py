"""The waiting requests in columns, so that ten thousand of them are seen in one pass.

A request is seated when it enters the queue and keeps its slot until it enters again; a slot
is taken back when room is needed and its request waits no more.

    queue    [r7, r2, r9 …]  found by identity: the objects themselves lie all over the memory
    columns  arrival │ deadline │ new tokens │ prefix │ started │ demoted   one row a slot
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bana.slo.budget import Budget, BudgetOutcome
from bana.slo.order import QueueColumns
from bana.slo.steps import StepModel

FIRST_SLOTS = 256

COLUMNS = {
    "sequence": np.int64,
    "arrival_s": np.float64,
    "deadline_s": np.float64,
    "prompt_tokens": np.int64,
    "prefix_tokens": np.int64,
    "book": np.int64,
    "started": np.bool_,
    "demoted": np.bool_,
}
Column: TypeAlias = npt.NDArray[Any]
Slots: TypeAlias = npt.NDArray[np.int64]


class Standing:
    """What bana knows about one request of an engine: its budget, its slot and its progress.

    `lock` holds the computed prefix of a request that yielded, None for any other one. `begun_s`
    is when its first token was out by the clock that all ranks share, `first_token_s` by this
    process's own. `outcome` is set when the request has finished.
    """

    __slots__ = (
        "begun_s",
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
        self.begun_s: float | None = None
        self.first_token_s: float | None = None
        self.outcome: BudgetOutcome | None = None


class WaitingRoom:
    """Columns over slots. O(1) to seat amortised, O(rows) with small constants to view.

    Whoever waits was seated, so that no entry of a request that has left is ever asked for: its
    address is entered anew when another one gets it.
    """

    def __init__(self) -> None:
        self._rows: dict[str, Column] = {
            name: np.zeros(FIRST_SLOTS, kind) for name, kind in COLUMNS.items()
        }
        self._free = list(range(FIRST_SLOTS))
        self._slots: dict[int, int] = {}

    def seat(self, req: Any, book: int, present: Callable[[], Sequence[Any]]) -> None:
        """Give `req` a slot; `present` tells who keeps theirs, asked when room is short.

        `book` is the number of its class's book.
        """
        if not self._free:
            self._make_room(present())
        standing: Standing = req.bana
        standing.slot = slot = self._free.pop()
        self._slots[id(req)] = slot
        budget = standing.budget
        values = (standing.sequence, budget.arrival_s, budget.deadline_s, 1, 0, book, False, False)
        for column, value in zip(self._rows.values(), values, strict=True):
            column[slot] = value

    def find(self, reqs: Sequence[Any]) -> Slots:
        """The slots of requests that wait, in their order; none of them is looked into."""
        return np.fromiter(map(self._slots.__getitem__, map(id, reqs)), np.int64, len(reqs))

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

    def books(self, slots: Slots) -> Slots:
        """The numbers of their classes' books."""
        books: Slots = self._rows["book"][slots]
        return books

    def new_tokens(self, slot: int) -> int:
        """Prompt tokens that are still to be computed, as last measured."""
        return int(self._rows["prompt_tokens"][slot] - self._rows["prefix_tokens"][slot])

    def prefix_tokens(self, slot: int) -> int:
        """Prompt tokens that need no computing, as last measured."""
        return int(self._rows["prefix_tokens"][slot])

    def sum_new_tokens(self, slots: Slots, page_tokens: int) -> int:
        """Prompt tokens still to be computed, each prompt in whole pages, as SGLang charges it."""
        new = self._rows["prompt_tokens"][slots] - self._rows["prefix_tokens"][slots]
        return int((-(-new // page_tokens)).sum()) * page_tokens

    def view(self, slots: Slots, model: StepModel, chunk_tokens: int) -> QueueColumns:
        """The rows of these slots, with what is left of each prompt priced by `model`."""
        rows = self._rows
        prompt, prefix = rows["prompt_tokens"][slots], rows["prefix_tokens"][slots]
        return QueueColumns(
            sequence=rows["sequence"][slots],
            arrival_s=rows["arrival_s"][slots],
            deadline_s=rows["deadline_s"][slots],
            service_s=model.estimate_prefills_s(prompt - prefix, prefix, chunk_tokens),
            prompt_tokens=prompt,
            started=rows["started"][slots],
            demoted=rows["demoted"][slots],
        )

    def _make_room(self, present: Sequence[Any]) -> None:
        self._slots = {id(req): req.bana.slot for req in present}
        size, kept = len(self._rows["sequence"]), set(self._slots.values())
        self._free = [slot for slot in range(size) if slot not in kept]
        if len(self._free) < size // 2:
            for name, column in self._rows.items():
                self._rows[name] = np.concatenate([column, np.zeros_like(column)])
            self._free.extend(range(size, 2 * size))
