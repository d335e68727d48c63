"""Order by deadline, and set aside early what can no longer keep it: the default.

walked by deadline ──▶ feasible, or started ──────────────────▶ front ─┐
                  └──▶ infeasible: demoted ──▶ back, oldest first ─────┴──▶ head
                       the first of them leads while `demoted_share` is not used up
"""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Annotated

import msgspec
import numpy as np

from bana.slo.heads import pick_head
from bana.slo.waiting import (
    DEMOTED,
    DEMOTED_SHARE,
    Flags,
    Integers,
    OrderPlan,
    QueueColumns,
    QueueView,
)

# A pass demotes that many and its head, so that it stays short; the others are set aside all the
# same, and demoted by the next ones.
MAX_DEMOTED = 1024


@dataclasses.dataclass(frozen=True)
class BudgetOptions:
    """`guard`: how many times its predicted service must fit before a request's deadline.

    `demoted_share`: the share of admitted prompt tokens up to which a demoted request goes before
    feasible ones; 0 lets the demoted run only where nothing else waits.
    """

    guard: Annotated[float, msgspec.Meta(ge=0, le=10)] = 2.0
    demoted_share: Annotated[float, msgspec.Meta(ge=0, le=0.5)] = 0.02


class BudgetOrder:
    """The deadline is the key; the budget, with its guard, decides who keeps it (see the README).

    A demoted request whose budget covers its service again is ordered by its deadline again.
    """

    def __init__(self, options: BudgetOptions) -> None:
        self._options = options

    def decide_order(self, view: QueueView, now_s: float, rng: Random) -> OrderPlan:
        queue, load = view.queue, view.load
        needed_s = queue.service_s * (self._options.guard * load.inflation)
        kept = (now_s + needed_s <= queue.deadline_s) | (queue.started & ~queue.demoted)
        front = pick_head(queue.deadline_s, queue.sequence, np.flatnonzero(kept), view.head_rows)
        given_up = ~kept & (queue.demoted | _mark_walked(queue, front, view.head_rows))
        leaders = 1 if load.demoted_share < self._options.demoted_share else 0
        back = _pick_back(queue, given_up, max(view.head_rows - front.size, leaders))
        return OrderPlan(
            head=_join(back[:leaders], front, back[leaders:], view.head_rows),
            reasons=_name_reasons(queue, front, back, leaders)[: view.head_rows],
            demote=_pick_demoted(queue, given_up, back),
        )


def _mark_walked(queue: QueueColumns, front: Integers, head_rows: int) -> Flags:
    """The rows before the last of a full front; all of them where the walk came to the end."""
    if front.size < head_rows:
        return np.ones(queue.sequence.size, dtype=np.bool_)
    last = front[-1]
    earlier = queue.deadline_s < queue.deadline_s[last]
    level = queue.deadline_s == queue.deadline_s[last]
    walked: Flags = earlier | (level & (queue.sequence < queue.sequence[last]))
    return walked


def _pick_back(queue: QueueColumns, given_up: Flags, count: int) -> Integers:
    """Begun ones first, so that one demoted request at a time holds KV; then by arrival."""
    sets = (given_up & queue.started, given_up & ~queue.started)
    begun, fresh = (
        pick_head(queue.arrival_s, queue.sequence, np.flatnonzero(rows), count) for rows in sets
    )
    return np.concatenate((begun, fresh))[:count]


def _pick_demoted(queue: QueueColumns, given_up: Flags, back: Integers) -> tuple[int, ...]:
    """Never without those who may run now: who has begun undemoted will not be demoted."""
    rows = np.flatnonzero(given_up & ~queue.demoted)
    if rows.size > MAX_DEMOTED:
        rows = np.union1d(rows[:MAX_DEMOTED], back[~queue.demoted[back]])
    return tuple(rows.tolist())


def _name_reasons(
    queue: QueueColumns, front: Integers, back: Integers, leaders: int
) -> tuple[str, ...]:
    leading = DEMOTED_SHARE if front.size else DEMOTED
    kept = ["restored" if was else "deadline" for was in queue.demoted[front].tolist()]
    return (*(leading,) * len(back[:leaders]), *kept, *(DEMOTED,) * len(back[leaders:]))


def _join(first: Integers, then: Integers, last: Integers, count: int) -> tuple[int, ...]:
    return tuple(np.concatenate((first, then, last))[:count].tolist())
