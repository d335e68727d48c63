"""Which waiting request runs next: the protocol and its policies by name.

A policy sees the whole queue and answers with the rows that should run first, and with the rows
that it gives up on for now.
"""

from __future__ import annotations

from random import Random
from typing import Protocol

from bana.slo.budget_order import BudgetOptions, BudgetOrder
from bana.slo.keyed_orders import (
    CascadeOptions,
    build_cascade,
    build_edf,
    build_fcfs,
    build_sjf,
)
from bana.slo.registry import PolicyEntry, PolicyRegistry
from bana.slo.waiting import EngineLoad, OrderPlan, QueueColumns, QueueView

__all__ = [
    "DEFAULT_ORDER",
    "ORDERS",
    "EngineLoad",
    "OrderPlan",
    "QueueColumns",
    "QueueOrder",
    "QueueView",
]


class QueueOrder(Protocol):
    """Law: as `OrderPlan` says; equal inputs give equal answers; a started request is never
    demoted; whatever the load, every request reaches the head once those before it are gone.
    """

    def decide_order(self, view: QueueView, now_s: float, rng: Random) -> OrderPlan: ...


ORDERS: PolicyRegistry[QueueOrder] = PolicyRegistry(
    "queue_order",
    {
        "budget": PolicyEntry(BudgetOrder, BudgetOptions),
        "cascade": PolicyEntry(build_cascade, CascadeOptions),
        "fcfs": PolicyEntry(build_fcfs),
        "edf": PolicyEntry(build_edf),
        "sjf": PolicyEntry(build_sjf),
    },
    members=("decide_order",),
)
DEFAULT_ORDER = "budget"
