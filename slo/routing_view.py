"""What a routing decision may depend on, and what it says."""

from __future__ import annotations

import msgspec

from bana.slo.steps import EnginePrices


class InstanceView(msgspec.Struct, frozen=True):
    """One instance that may be chosen, as far as the front door knows now.

    `prefill_tokens` are outstanding prompt tokens not yet known to be computed or cached;
    `decode_requests` are requests that have begun to answer. `prefix_tokens` is how much of
    this request's prompt was sent there before, `indexed_tokens` how much of all prompts; both
    are 0 unless the policy asks for prefixes. `prices` are what computing costs there, None where
    it does not say.
    """

    name: str
    prefill_tokens: int
    decode_requests: int
    waiting_requests: int
    prefix_tokens: int = 0
    indexed_tokens: int = 0
    prices: EnginePrices | None = None


class StoreView(msgspec.Struct, frozen=True):
    """What the instances' common store would have to do for this request.

    It is believed to hold the first `prompt_tokens` of the prompt, `tier_share` of them (0 to 1) on
    tiers alone; a token has `token_bytes`. All tiers together give `bytes_per_s`, 0 where that was
    not measured yet, after `latency_s` and the `backlog_bytes` that are to be read before.
    """

    prompt_tokens: int
    tier_share: float
    token_bytes: float
    bytes_per_s: float
    latency_s: float
    backlog_bytes: int


class RoutingView(msgspec.Struct, frozen=True):
    """Everything a routing decision may depend on.

    `instances` is never empty and sorted by name; `dispatched` counts earlier decisions. `store`
    is None where there is none.
    """

    instances: tuple[InstanceView, ...]
    prompt_tokens: int
    output_tokens: int
    slo_class: str
    dispatched: int
    store: StoreView | None = None


class RoutingDecision(msgspec.Struct, frozen=True):
    """The chosen instance and why, as a low-cardinality word."""

    instance: str
    reason: str
