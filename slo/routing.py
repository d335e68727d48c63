"""Which instance gets a request: the protocol, its views, the built-in policies.

A policy is pure: it sees only instances that may be chosen and answers with one of them and its
reason. Counting dispatches, health and prefix bookkeeping belong to the adapters.
"""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Annotated, Protocol

import msgspec

from bana.slo.predicted_finish import FinishOptions, PredictedFinish
from bana.slo.registry import PolicyEntry, PolicyRegistry
from bana.slo.routing_view import InstanceView, RoutingDecision, RoutingView, StoreView

__all__ = [
    "DEFAULT_ROUTING",
    "ROUTING",
    "InstanceView",
    "RoutingDecision",
    "RoutingPolicy",
    "RoutingView",
    "StoreView",
]


class RoutingPolicy(Protocol):
    """Law: the answer names an instance of the view; equal inputs give equal answers.

    `needs_prefix` asks the adapter to keep the bounded prefix index that fills `prefix_tokens`.
    """

    needs_prefix: bool

    def decide_instance(self, view: RoutingView, now_s: float, rng: Random) -> RoutingDecision: ...


@dataclasses.dataclass(frozen=True)
class LeastLoadOptions:
    """`decode_request_tokens`: prefill tokens that one decoding request weighs."""

    decode_request_tokens: Annotated[float, msgspec.Meta(ge=0)] = 32.0


class LeastLoad:
    """The instance with the least outstanding work; equal ones take turns (BanaServe, 4.4)."""

    needs_prefix = False

    def __init__(self, options: LeastLoadOptions) -> None:
        self._options = options

    def decide_instance(self, view: RoutingView, now_s: float, rng: Random) -> RoutingDecision:
        work = {i.name: self._work_tokens(i) for i in view.instances}
        least = min(work.values())
        idle = [name for name, tokens in work.items() if tokens == least]
        if len(idle) == 1:
            return RoutingDecision(idle[0], "least_load")
        return RoutingDecision(idle[view.dispatched % len(idle)], "equal_load")

    def _work_tokens(self, instance: InstanceView) -> float:
        decode = instance.decode_requests * self._options.decode_request_tokens
        return instance.prefill_tokens + decode


class RoundRobin:
    """Each instance in turn."""

    needs_prefix = False

    def decide_instance(self, view: RoutingView, now_s: float, rng: Random) -> RoutingDecision:
        chosen = view.instances[view.dispatched % len(view.instances)]
        return RoutingDecision(chosen.name, "turn")


class UniformRandom:
    """Any instance with equal chance: the naive baseline."""

    needs_prefix = False

    def decide_instance(self, view: RoutingView, now_s: float, rng: Random) -> RoutingDecision:
        return RoutingDecision(rng.choice(view.instances).name, "random")


@dataclasses.dataclass(frozen=True)
class CacheAwareOptions:
    """The thresholds of SGLang's router, with its defaults.

    Above `cache_threshold` of the prompt the best match wins; the fleet counts as imbalanced when
    the spread of outstanding requests exceeds `balance_abs_threshold` and the largest exceeds
    `balance_rel_threshold` times the smallest.
    """

    cache_threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.3
    balance_abs_threshold: Annotated[int, msgspec.Meta(ge=0)] = 64
    balance_rel_threshold: Annotated[float, msgspec.Meta(ge=1)] = 1.5


class CacheAware:
    """The longest known prefix while balanced, else the shortest queue (SGLang's router)."""

    needs_prefix = True

    def __init__(self, options: CacheAwareOptions) -> None:
        self._options = options

    def decide_instance(self, view: RoutingView, now_s: float, rng: Random) -> RoutingDecision:
        if self._is_imbalanced(view):
            shortest = min(view.instances, key=lambda i: (_requests(i), i.name))
            return RoutingDecision(shortest.name, "imbalanced")
        best = max(view.instances, key=lambda i: (i.prefix_tokens, -_requests(i)))
        if best.prefix_tokens > self._options.cache_threshold * max(view.prompt_tokens, 1):
            return RoutingDecision(best.name, "prefix")
        emptiest = min(view.instances, key=lambda i: (i.indexed_tokens, _requests(i), i.name))
        return RoutingDecision(emptiest.name, "least_indexed")

    def _is_imbalanced(self, view: RoutingView) -> bool:
        loads = [_requests(i) for i in view.instances]
        high, low = max(loads), min(loads)
        spread = high - low > self._options.balance_abs_threshold
        return spread and high > self._options.balance_rel_threshold * low


def _requests(instance: InstanceView) -> int:
    return instance.decode_requests + instance.waiting_requests


ROUTING: PolicyRegistry[RoutingPolicy] = PolicyRegistry(
    "routing",
    {
        "least_load": PolicyEntry(LeastLoad, LeastLoadOptions),
        "round_robin": PolicyEntry(lambda _: RoundRobin()),
        "random": PolicyEntry(lambda _: UniformRandom()),
        "cache_aware": PolicyEntry(CacheAware, CacheAwareOptions),
        "predicted_finish": PolicyEntry(PredictedFinish, FinishOptions),
    },
    members=("needs_prefix", "decide_instance"),
)
DEFAULT_ROUTING = "least_load"
