"""The instance that is done first is chosen, wherever the prompt's KV is."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from bana.slo.predicted_finish import estimate_fetch_s
from bana.slo.routing import ROUTING, InstanceView, RoutingView, StoreView
from bana.slo.steps import EnginePrices, StepModel

# A millisecond a prompt token; a decode step takes ten, and two more for each that decodes.
MODEL = StepModel(0.0, 0.001, 0.0, 0.01, 0.002, 0.0)
PRICES = EnginePrices(MODEL, 512, 1.0)
# A million bytes a second, a thousand bytes a token.
STORE = StoreView(0, 1.0, 1000.0, 1e6, 0.0, 0)


def instance(name: str, **more: Any) -> InstanceView:
    known = {"prefill_tokens": 0, "decode_requests": 0, "waiting_requests": 0, "prices": PRICES}
    return InstanceView(name, **{**known, **more})


def choose(*instances: InstanceView, **more: Any) -> tuple[str, str]:
    known = {"prompt_tokens": 1000, "output_tokens": 0, "slo_class": "", "dispatched": 0}
    policy = ROUTING.create("predicted_finish")
    view = RoutingView(instances=instances, **{**known, **more})
    decided = policy.decide_instance(view, 0.0, Random(0))
    return decided.instance, decided.reason


def store(prompt_tokens: int, **more: Any) -> StoreView:
    return msgspec.structs.replace(STORE, prompt_tokens=prompt_tokens, **more)


def test_the_shorter_queue_wins() -> None:
    assert choose(instance("a", prefill_tokens=500), instance("b")) == ("b", "finish")


def test_prompts_that_wait_see_nothing_of_each_other() -> None:
    seeing = msgspec.structs.replace(MODEL, attended_token_s=1e-6)
    prices = msgspec.structs.replace(PRICES, model=seeing)
    # 12 s, of which attention takes 8, or 6.3 s, of which it takes 0.3.
    whole = instance("a", prefill_tokens=4000, waiting_requests=1, prices=prices)
    parts = instance("b", prefill_tokens=6000, waiting_requests=60, prices=prices)
    assert choose(whole, parts) == ("b", "finish")


def test_equal_ones_take_turns() -> None:
    pair = instance("a"), instance("b", prefill_tokens=5)
    assert choose(*pair) == ("a", "equal_finish")
    assert choose(*pair, dispatched=1) == ("b", "equal_finish")


def test_a_slow_engine_counts_as_slow() -> None:
    slow = msgspec.structs.replace(PRICES, inflation=3.0)
    pair = instance("a", prices=slow), instance("b", prefill_tokens=1500)
    assert choose(*pair) == ("b", "finish")


def test_without_a_store_a_cached_prefix_is_worth_its_computing() -> None:
    near = instance("a", prefill_tokens=800, prefix_tokens=900)
    assert choose(near, instance("b")) == ("a", "finish")
    nearly = instance("a", prefill_tokens=950, prefix_tokens=900)
    assert choose(nearly, instance("b")) == ("b", "finish")


def test_a_store_that_fetches_quickly_sets_requests_free() -> None:
    near = instance("a", prefill_tokens=200, prefix_tokens=900)
    # 0.09 s of reading elsewhere against 0.2 s of queue here.
    quick = store(900, bytes_per_s=1e7)
    assert choose(near, instance("b"), store=quick) == ("b", "finish")
    assert choose(near, instance("b"), store=store(900)) == ("a", "finish")
    # In the arena it is there at once.
    assert choose(near, instance("b"), store=store(900, tier_share=0.0)) == ("b", "finish")


def test_a_fetch_behind_a_queue_is_hidden() -> None:
    near = instance("a", prefill_tokens=1000, prefix_tokens=900)
    far = instance("b", prefill_tokens=950)
    # 0.9 s of reading while 0.95 s of others' prompts are computed.
    assert choose(near, far, store=store(900)) == ("b", "finish")
    # What others want to read comes first.
    assert choose(near, far, store=store(900, backlog_bytes=200_000)) == ("a", "finish")


def test_what_is_slower_to_fetch_than_to_compute_is_computed() -> None:
    pair = instance("a", prefill_tokens=100), instance("b", prefill_tokens=200)
    assert choose(*pair, store=store(900, bytes_per_s=1e3)) == ("a", "finish")


def test_answers_are_slower_where_many_run() -> None:
    pair = instance("a", decode_requests=40), instance("b", prefill_tokens=100)
    assert choose(*pair) == ("a", "finish")
    assert choose(*pair, output_tokens=50) == ("b", "finish")


def test_who_tells_no_prices_is_taken_for_the_slowest() -> None:
    slow = msgspec.structs.replace(PRICES, inflation=2.0)
    pair = instance("a", prices=None), instance("b", prices=slow, prefill_tokens=10)
    assert choose(*pair, instance("c")) == ("c", "finish")
    assert choose(*pair) == ("a", "equal_finish")
    silent = instance("a", prices=None, prefill_tokens=9), instance("b", prices=None)
    assert choose(*silent) == ("b", "unpriced")
    busy = instance("a", prices=None, decode_requests=1), instance("b", prices=None)
    assert choose(*busy) == ("b", "unpriced")


@pytest.mark.parametrize("more", [{"bytes_per_s": 0.0}, {"tier_share": 0.0}], ids=str)
def test_what_costs_nothing_or_was_never_measured_is_there(more: dict[str, float]) -> None:
    assert estimate_fetch_s(store(900, latency_s=1.0, **more), 900) == 0.0


def test_a_fetch_takes_its_latency_and_its_bytes() -> None:
    view = store(900, tier_share=0.5, latency_s=0.1, backlog_bytes=100_000)
    assert estimate_fetch_s(view, 800) == pytest.approx(0.1 + 0.1 + 0.4)
