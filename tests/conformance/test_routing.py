"""The law of routing policies, held against whatever is registered."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.slo.routing import (
    DEFAULT_ROUTING,
    ROUTING,
    InstanceView,
    RoutingPolicy,
    RoutingView,
    StoreView,
)
from bana.slo.steps import EnginePrices, StepModel

NAMES = st.lists(st.text("abcdef0123456789-", min_size=1), min_size=1, max_size=8, unique=True)
TOKENS = st.integers(0, 2**40)
REQUESTS = st.integers(0, 10_000)
SECONDS = st.floats(0, 100)
PRICES = st.builds(
    EnginePrices,
    st.builds(StepModel, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS),
    st.integers(1, 65_536),
    st.floats(1, 1000),
)
STORES = st.builds(
    StoreView,
    TOKENS,
    st.floats(0, 1),
    st.floats(0, 1e9),
    st.floats(0, 1e12),
    st.floats(0, 1000),
    st.integers(0, 2**50),
)


@st.composite
def routing_views(draw: st.DrawFn) -> RoutingView:
    """Any view that an adapter may build, extremes included."""
    instances = tuple(
        InstanceView(
            name=name,
            prefill_tokens=draw(TOKENS),
            decode_requests=draw(REQUESTS),
            waiting_requests=draw(REQUESTS),
            prefix_tokens=draw(TOKENS),
            indexed_tokens=draw(TOKENS),
            prices=draw(st.none() | PRICES),
        )
        for name in sorted(draw(NAMES))
    )
    return RoutingView(
        instances=instances,
        prompt_tokens=draw(TOKENS),
        output_tokens=draw(TOKENS),
        slo_class=draw(st.sampled_from(["interactive", "standard", "batch", ""])),
        dispatched=draw(st.integers(0, 2**40)),
        store=draw(st.none() | STORES),
    )


@pytest.fixture(params=ROUTING.names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _build(name: str) -> RoutingPolicy:
    return ROUTING.create(name)


@pytest.mark.parametrize("name", ROUTING.names())
@settings(deadline=None)
@given(view=routing_views(), now_s=st.floats(0, 1e9), seed=st.integers(0, 2**32))
def test_it_chooses_from_the_view_and_says_why(
    name: str, view: RoutingView, now_s: float, seed: int
) -> None:
    decision = _build(name).decide_instance(view, now_s, Random(seed))
    assert decision.instance in {i.name for i in view.instances}
    assert decision.reason
    assert len(decision.reason) <= 64


@pytest.mark.parametrize("name", ROUTING.names())
@settings(deadline=None)
@given(view=routing_views(), now_s=st.floats(0, 1e9), seed=st.integers(0, 2**32))
def test_equal_inputs_give_equal_answers(
    name: str, view: RoutingView, now_s: float, seed: int
) -> None:
    policy = _build(name)
    first = policy.decide_instance(view, now_s, Random(seed))
    assert policy.decide_instance(view, now_s, Random(seed)) == first
    assert _build(name).decide_instance(view, now_s, Random(seed)) == first


def test_it_declares_whether_it_needs_prefixes(name: str) -> None:
    assert isinstance(_build(name).needs_prefix, bool)


def test_the_default_is_registered() -> None:
    assert DEFAULT_ROUTING in ROUTING.names()
