"""The instance that is predicted to be done first, wherever the prompt's KV is.

    queue there ─────────┐
    what the store must  ├─ the later of both, then computing what neither holds, then answering
    fetch for it ────────┘

Locality counts only as far as a fetch would not be hidden behind the queue.
"""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Annotated

import msgspec

from bana.slo.routing_view import InstanceView, RoutingDecision, RoutingView, StoreView
from bana.slo.steps import EnginePrices, StepShape, count_attended

# What one decoding request weighs where nobody knows what its steps cost, as in `least_load`.
UNPRICED_DECODE_TOKENS = 32.0


@dataclasses.dataclass(frozen=True)
class FinishOptions:
    """Of an answer, at most `most_output_tokens` count: what clients ask for is an upper bound.
    Predictions within `tie_share` of the best are taken for equal, and take turns.
    """

    most_output_tokens: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 128
    tie_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.02


class PredictedFinish:
    """Least predicted finish (ours). Where an instance does not say what computing costs there, it
    is taken for as fast as the slowest that does; where none does, outstanding tokens decide.
    """

    needs_prefix = True

    def __init__(self, options: FinishOptions) -> None:
        self._options = options

    def decide_instance(self, view: RoutingView, now_s: float, rng: Random) -> RoutingDecision:
        known = [i.prices for i in view.instances if i.prices is not None]
        stand_in = max(known, key=_price_of_token, default=None)
        if stand_in is None:
            costs = {i.name: _count_tokens(i) for i in view.instances}
        else:
            costs = {
                i.name: self._estimate_finish_s(view, i, i.prices or stand_in)
                for i in view.instances
            }
        least = min(costs.values())
        near = [name for name, cost in costs.items() if cost <= least + self._tie(least)]
        reason = "unpriced" if stand_in is None else "finish"
        if len(near) == 1:
            return RoutingDecision(near[0], reason)
        return RoutingDecision(near[view.dispatched % len(near)], f"equal_{reason}")

    def _tie(self, least: float) -> float:
        return self._options.tie_share * abs(least)

    def _estimate_finish_s(
        self, view: RoutingView, instance: InstanceView, prices: EnginePrices
    ) -> float:
        """Seconds from now until the answer is out."""
        queue_s = _price_queue(prices, instance)
        first_s = queue_s + _price_prompt(view, prices, instance.prefix_tokens)
        store = view.store
        if store is not None and store.prompt_tokens > instance.prefix_tokens:
            fetch_s = estimate_fetch_s(store, store.prompt_tokens - instance.prefix_tokens)
            restored_s = _price_prompt(view, prices, store.prompt_tokens)
            first_s = min(first_s, max(queue_s, fetch_s) + restored_s)
        step = StepShape(decode_requests=instance.decode_requests + 1)
        output = min(view.output_tokens, self._options.most_output_tokens)
        return first_s + output * prices.model.estimate_step_s(step)


def estimate_fetch_s(store: StoreView, tokens: int) -> float:
    """Until so many tokens are in the arena; a tier that was never measured costs nothing yet."""
    if not store.bytes_per_s or not store.tier_share:
        return 0.0
    wanted_bytes = tokens * store.tier_share * store.token_bytes
    return store.latency_s + (store.backlog_bytes + wanted_bytes) / store.bytes_per_s


def _price_queue(prices: EnginePrices, instance: InstanceView) -> float:
    """Computing all that waits, as prompts of equal length: none sees another one's tokens."""
    prompts = max(1, instance.waiting_requests)
    tokens = instance.prefill_tokens
    seen = count_attended(tokens, 0) - prompts * count_attended(tokens / prompts, 0)
    unseen_s = prices.inflation * prices.model.attended_token_s * seen
    return prices.estimate_prefill_s(tokens, 0) - unseen_s


def _price_prompt(view: RoutingView, prices: EnginePrices, cached_tokens: int) -> float:
    """Computing what is not cached; one token always is."""
    cached = min(cached_tokens, max(view.prompt_tokens - 1, 0))
    return prices.estimate_prefill_s(view.prompt_tokens - cached, cached)


def _count_tokens(instance: InstanceView) -> float:
    decoding = instance.decode_requests * UNPRICED_DECODE_TOKENS
    return instance.prefill_tokens + decoding - instance.prefix_tokens


def _price_of_token(prices: EnginePrices) -> float:
    return prices.inflation * prices.model.prefill_token_s
