"""The law of placement policies, held against whatever is registered."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.radix_global.writer.placement import (
    DEFAULT_PLACEMENT,
    PLACEMENTS,
    Placement,
    PlacementView,
    TierRoom,
)

ALL = pytest.mark.parametrize("name", PLACEMENTS.names())


@st.composite
def views(draw: st.DrawFn) -> PlacementView:
    """Any page beside one to seven tiers."""
    bandwidths = st.none() | st.just(0.0) | st.floats(0, 1e12)
    rooms = tuple(
        TierRoom(tier, draw(bandwidths), draw(st.integers(0, 2**40)))
        for tier in range(1, draw(st.integers(2, 8)))
    )
    held = draw(st.integers(0, 2 ** len(rooms) - 1)) << 1
    key = draw(st.binary(min_size=16, max_size=16))
    share = draw(st.sampled_from([0.0, 0.04, 0.9, 1.0]) | st.floats(0, 1))
    return PlacementView(key, held, draw(st.integers(0, 2**40)), share, rooms)


@functools.cache
def _build(name: str, copy: int = 0) -> Placement:
    """Policy `name`; another `copy` is another object. Looking for entry points takes its time."""
    return PLACEMENTS.create(name)


@ALL
@settings(deadline=None)
@given(view=views())
def test_only_tiers_that_lack_the_page_and_one_at_least_where_none_has_it(
    name: str, view: PlacementView
) -> None:
    choice = _build(name).choose_tiers(view)
    known = sum(1 << room.tier for room in view.tiers)
    assert not choice.tiers & ~known
    assert not choice.tiers & view.held
    assert choice.tiers or view.held
    assert 0 < len(choice.reason) <= 64


@ALL
@settings(deadline=None)
@given(view=views())
def test_equal_inputs_give_equal_answers(name: str, view: PlacementView) -> None:
    policy = _build(name)
    first = policy.choose_tiers(view)
    assert policy.choose_tiers(view) == first
    assert _build(name, 1).choose_tiers(view) == first


def test_the_default_is_registered() -> None:
    assert DEFAULT_PLACEMENT in PLACEMENTS.names()
