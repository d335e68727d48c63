"""The law of restore policies, held against whatever is registered."""

from __future__ import annotations

import functools
import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.slo.fetching import RestoreView, TierView
from bana.slo.restore import LONGEST_HOLD_S, RESTORES, RestorePolicy
from bana.slo.steps import EnginePrices, StepModel

ALL = pytest.mark.parametrize("name", RESTORES.names())
SECONDS = st.sampled_from([0.0, 1.0, 2.0]) | st.floats(0, 1e9)
PRICES = st.sampled_from([0.0, 1e-3]) | st.floats(0, 100)
MODELS = st.builds(StepModel, PRICES, PRICES, PRICES, PRICES, PRICES, PRICES)
ENGINES = st.builds(EnginePrices, MODELS, st.integers(1, 65_536), st.floats(1, 1e6))
TIERS = st.lists(
    st.builds(
        TierView,
        st.integers(1, 7),
        st.floats(0, 1e12),
        st.floats(0, 1e6),
        st.floats(0, 1e15),
    ),
    max_size=7,
    unique_by=lambda tier: tier.place,
)


@functools.cache
def _build(name: str) -> RestorePolicy:
    """Looking for entry points takes its time."""
    return RESTORES.create(name)


@st.composite
def views(draw: st.DrawFn) -> RestoreView:
    """Any request that an adapter may ask about."""
    known = draw(st.none() | st.binary(max_size=200))
    arrived = draw(st.integers(0, len(known or b"")))
    page_tokens = draw(st.integers(2, 256))
    device_pages = draw(st.integers(0, 100))
    coming = draw(st.integers(0, 20)) if known is not None else 0
    pages = device_pages + len(known or b"") + coming
    return RestoreView(
        asked_s=draw(SECONDS),
        deadline_s=draw(SECONDS),
        prompt_tokens=pages * page_tokens + draw(st.integers(1, 10_000)),
        device_tokens=device_pages * page_tokens,
        page_tokens=page_tokens,
        page_bytes=draw(st.integers(1, 2**26)),
        known=known,
        arrived_pages=arrived,
        coming_pages=coming,
        is_settled=draw(st.booleans()),
        prices=draw(st.none() | ENGINES),
        delayed_requests=draw(st.integers(0, 100_000)),
        tiers=tuple(draw(TIERS)),
    )


@ALL
@given(view=views(), waited_s=SECONDS, seed=st.integers(0, 2**32))
def test_a_plan_lies_within_its_view(
    name: str, view: RestoreView, waited_s: float, seed: int
) -> None:
    policy, now_s = _build(name), view.asked_s + waited_s
    plan = policy.decide_restore(view, now_s, Random(seed))
    assert plan == policy.decide_restore(view, now_s, Random(seed))
    assert view.arrived_pages <= plan.pages <= len(view.known or b"") + view.coming_pages
    assert math.isfinite(plan.until_s)
    is_all = view.known is not None and view.arrived_pages == len(view.known)
    is_complete = is_all and not view.coming_pages
    if view.is_settled or is_complete:
        assert plan.until_s <= now_s


@ALL
@given(view=views())
def test_no_wait_lasts_for_ever(name: str, view: RestoreView) -> None:
    policy, now_s = _build(name), view.asked_s
    end_s = view.asked_s + LONGEST_HOLD_S
    assert policy.decide_restore(view, end_s, Random(0)).until_s <= end_s * (1 + 1e-9)
    for _ in range(3):
        now_s = policy.decide_restore(view, now_s, Random(0)).until_s
        assert now_s <= end_s * (1 + 1e-9)
