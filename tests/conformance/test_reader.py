"""The law of reading policies, held against whatever is registered."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.radix_global.reader.policies import (
    DEFAULT_READER,
    READERS,
    OpenPage,
    ReadPolicy,
    TierLoad,
)

ALL = pytest.mark.parametrize("name", READERS.names())
COUNTS = st.integers(0, 3)
BANDWIDTHS = st.none() | st.floats(0, 1e12)
LATENCIES = st.none() | st.floats(0, 1e3)
MASKS = st.integers(1, 127).map(lambda mask: mask << 1)
PAGES = st.builds(
    OpenPage,
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**40),
    st.integers(1, 2**31 - 1),
    MASKS,
    st.integers(0, 7),
)


@st.composite
def loads(draw: st.DrawFn, reading: st.SearchStrategy[int] = COUNTS) -> tuple[TierLoad, ...]:
    """The loads of one to seven tiers."""
    waiting = st.just(0) | st.integers(0, 2**40)
    return tuple(
        TierLoad(
            tier=tier,
            width=3,
            reading=draw(reading),
            overdue=draw(COUNTS),
            waiting_bytes=draw(waiting),
            only_here_bytes=draw(st.sampled_from([0, 0, 7])),
            bandwidth_bytes_per_s=draw(BANDWIDTHS),
            latency_s=draw(LATENCIES),
        )
        for tier in range(1, draw(st.integers(2, 8)))
    )


@functools.cache
def _build(name: str, copy: int = 0) -> ReadPolicy:
    """Policy `name`; another `copy` is another object. Looking for entry points takes its time."""
    return READERS.create(name)


@ALL
@settings(deadline=None)
@given(page=PAGES, seen=loads())
def test_a_page_goes_to_tiers_that_hold_it_with_a_reason(
    name: str, page: OpenPage, seen: tuple[TierLoad, ...]
) -> None:
    choice = _build(name).choose_tiers(page, seen)
    assert choice.tiers > 0
    assert not choice.tiers & ~page.tiers
    assert 0 < len(choice.reason) <= 64


@ALL
@settings(deadline=None)
@given(seen=loads(st.just(0)))
def test_somebody_may_go_on_when_nothing_is_under_way_in_time(
    name: str, seen: tuple[TierLoad, ...]
) -> None:
    assert any(_build(name).may_claim(load.tier, seen) for load in seen)


@ALL
@settings(deadline=None)
@given(page=PAGES, seen=loads())
def test_equal_inputs_give_equal_answers(
    name: str, page: OpenPage, seen: tuple[TierLoad, ...]
) -> None:
    first, second = _build(name), _build(name, 1)
    assert first.choose_tiers(page, seen) == second.choose_tiers(page, seen)
    assert first.choose_tiers(page, seen) == first.choose_tiers(page, seen)
    for load in seen:
        assert first.may_claim(load.tier, seen) == second.may_claim(load.tier, seen)


def test_the_default_is_registered() -> None:
    assert DEFAULT_READER in READERS.names()
