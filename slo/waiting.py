"""A queue of waiting requests in columns, and what a plan for it says.

In columns ten thousand requests are ordered in well under a millisecond.
"""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import numpy.typing as npt

# Reasons of a request that was given up: nothing else waits, or its share is not used up.
DEMOTED = "demoted"
DEMOTED_SHARE = "demoted_share"

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, eq=False)
class QueueColumns:
    """The waiting requests, one row each, all columns equally long.

    `sequence` numbers requests as they arrived and breaks ties; it is unique. `service_s` is the
    predicted time to the first token of what is left of the prompt, served alone (cached prefix
    excluded). `started` marks a request with computed chunks that yielded; `demoted` one that an
    earlier plan demoted.

    Every number is finite, and of a size that a product of two of them is too: budgets are checked
    where they are read, predictions are bounded by their model.
    """

    sequence: Integers
    arrival_s: Floats
    deadline_s: Floats
    service_s: Floats
    prompt_tokens: Integers
    started: Flags
    demoted: Flags

    @property
    def tightest_ttft_s(self) -> float:
        """The smallest TTFT limit of a row; there must be one. O(rows)."""
        return float((self.deadline_s - self.arrival_s).min())


class EngineLoad(msgspec.Struct, frozen=True):
    """How the engine shares its time now.

    `inflation` is the wall time of recent prefill work over the time it would take alone, at
    least 1; `full_inflation` the same with the instance nearly full. `demoted_share` is the share
    of recently computed prompt tokens whose plan had their request among its `lost_rows`, 0 to 1:
    those that ran because they were feasible again do not count.
    """

    inflation: float = 1.0
    full_inflation: float = 1.0
    demoted_share: float = 0.0


class QueueView(msgspec.Struct, frozen=True):
    """Everything an order may depend on; `head_rows` bounds the answer, at least 1."""

    queue: QueueColumns
    load: EngineLoad
    head_rows: int


class OrderPlan(msgspec.Struct, frozen=True):
    """The rows to run first, in order, with a low-cardinality reason each, and the newly demoted.

    `head` holds min(head_rows, rows of the queue) distinct rows.
    """

    head: tuple[int, ...]
    reasons: tuple[str, ...]
    demote: tuple[int, ...] = ()

    @property
    def lost_rows(self) -> frozenset[int]:
        """The rows of the head that run although they can no longer keep their deadline."""
        pairs = zip(self.head, self.reasons, strict=True)
        return frozenset(row for row, reason in pairs if reason in (DEMOTED, DEMOTED_SHARE))

    @property
    def passed_over(self) -> int | None:
        """The first row where it is there for its share only: without room, the next ones run."""
        leads = bool(self.reasons) and self.reasons[0] == DEMOTED_SHARE
        return self.head[0] if leads else None
