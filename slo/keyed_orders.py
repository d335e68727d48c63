"""Orders that sort the whole queue by one number and give nobody up: the baselines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random
from typing import Annotated

import msgspec
import numpy as np

from bana.slo.heads import pick_head
from bana.slo.waiting import Floats, OrderPlan, QueueView

Key = Callable[[QueueView, float], Floats]


class KeyedOrder:
    """Smallest key first, equal keys in order of arrival; `reason` names the key."""

    def __init__(self, key: Key, reason: str) -> None:
        self._key = key
        self._reason = reason

    def decide_order(self, view: QueueView, now_s: float, rng: Random) -> OrderPlan:
        queue = view.queue
        rows = np.arange(queue.sequence.size)
        head = pick_head(self._key(view, now_s), queue.sequence, rows, view.head_rows)
        return OrderPlan(tuple(head.tolist()), (self._reason,) * head.size)


def build_fcfs(_: object) -> KeyedOrder:
    """First come, first served: the naive baseline."""
    return KeyedOrder(lambda view, _: view.queue.arrival_s, "arrival")


def build_edf(_: object) -> KeyedOrder:
    """Earliest deadline first, lost or not (Liu and Layland 1973, for one resource)."""
    return KeyedOrder(lambda view, _: view.queue.deadline_s, "deadline")


def build_sjf(_: object) -> KeyedOrder:
    """Shortest predicted service first; starves long prompts under load."""
    return KeyedOrder(lambda view, _: view.queue.service_s, "service")


@dataclasses.dataclass(frozen=True)
class CascadeOptions:
    """`gamma`: the guard band around the predicted service, above 1 in the paper."""

    gamma: Annotated[float, msgspec.Meta(ge=0, le=10)] = 1.2


def build_cascade(options: CascadeOptions) -> KeyedOrder:
    """Smallest budget first: B = deadline - now - ½ (L_actual + L_max) · γ (Cascade)."""

    def measure_budget_s(view: QueueView, now_s: float) -> Floats:
        inflation = (view.load.inflation + view.load.full_inflation) / 2
        remaining_s = view.queue.service_s * (inflation * options.gamma)
        return view.queue.deadline_s - now_s - remaining_s

    return KeyedOrder(measure_budget_s, "smallest_budget")
