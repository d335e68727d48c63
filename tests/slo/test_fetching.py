"""What fetching and computing take, on paper."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.slo.fetching import (
    MAX_CANDIDATES,
    RestoreView,
    TierView,
    estimate_arrivals_behind_s,
    estimate_arrivals_s,
    list_candidates,
    list_meetings,
    price_rest_s,
)
from bana.slo.steps import EnginePrices, StepModel

# A millisecond a token, ten a chunk.
PRICES = EnginePrices(StepModel(0.01, 0.001, 0.0, 0.0, 0.0, 0.0), 500, 1.0)
VIEW = RestoreView(
    asked_s=100.0,
    deadline_s=110.0,
    prompt_tokens=1000,
    device_tokens=100,
    page_tokens=10,
    page_bytes=1000,
    known=b"\x02" * 50,
    arrived_pages=0,
    coming_pages=0,
    is_settled=False,
    prices=PRICES,
    delayed_requests=0,
    tiers=(TierView(1, 10_000.0, 0.05, 0.0),),
)
FAST, SLOW = TierView(1, 10_000.0, 0.05, 0.0), TierView(2, 2_000.0, 0.2, 4_000.0)


def change(**changed: object) -> RestoreView:
    return msgspec.structs.replace(VIEW, **changed)


def arrivals(view: RestoreView, *pages: int) -> list[float]:
    return estimate_arrivals_s(view, np.array(pages)).tolist()


def test_pages_come_as_fast_as_their_tier_reads() -> None:
    assert arrivals(VIEW, 0, 1, 50) == pytest.approx([0.0, 0.15, 5.05])


def test_what_lies_behind_a_page_comes_without_what_is_before_it() -> None:
    view = change(known=b"\x01" * 10 + b"\x02" * 10, arrived_pages=5)
    behind = estimate_arrivals_behind_s(view, np.array([6, 10, 15, 20])).tolist()
    assert behind == pytest.approx([1.05, 1.05, 0.55, 0.0])


def test_meetings_compute_from_what_has_arrived_up_to_a_page() -> None:
    view = change(known=b"\x02" * 5, arrived_pages=1)
    meetings = list_meetings(view, PRICES)
    assert meetings.pages.tolist() == [2, 3, 4]
    # Ten tokens a page at a millisecond each, and a chunk's ten.
    assert meetings.compute_s.tolist() == pytest.approx([0.02, 0.03, 0.04])
    assert meetings.arrival_s.tolist() == pytest.approx([0.35, 0.25, 0.15])
    assert meetings.rest_s == pytest.approx(0.86 + 0.01)
    for known in (b"", b"\x02", b"\x02\x02"):
        view = change(known=known, arrived_pages=len(known) // 2)
        assert not list_meetings(view, PRICES).pages.size


def test_what_has_arrived_or_lies_in_the_arena_takes_no_time() -> None:
    known = b"\x01" * 10 + b"\x02" * 10 + b"\x03" * 10
    assert arrivals(change(known=known), 10, 20, 30) == pytest.approx([0.0, 1.05, 1.05])
    assert arrivals(change(known=known, arrived_pages=15), 15, 16, 30) == pytest.approx(
        [0.0, 0.15, 0.55]
    )


def test_tiers_that_hold_the_same_pages_share_them() -> None:
    view = change(known=b"\x06" * 48, tiers=(FAST, SLOW))
    # 12,000 bytes a second together, after 4,000 bytes for others.
    assert arrivals(view, 12, 48) == pytest.approx([0.05 + 16 / 12, 0.05 + 52 / 12])


def test_tiers_that_hold_different_pages_read_side_by_side() -> None:
    view = change(known=b"\x02" * 10 + b"\x04" * 10, tiers=(FAST, SLOW))
    # 10,000 bytes from one; 4,000 for others and 10,000 from the other.
    assert arrivals(view, 10, 20) == pytest.approx([0.05 + 14 / 12, 0.2 + 7.0])


def test_a_tier_that_was_never_measured_costs_nothing_yet() -> None:
    assert arrivals(change(tiers=()), 50) == [0.0]
    assert arrivals(change(tiers=(TierView(1, 0.0, 0.0, 0.0),)), 50) == [0.0]


def test_the_rest_is_computed_behind_what_is_restored() -> None:
    slow = msgspec.structs.replace(PRICES, inflation=2.0)
    priced = price_rest_s(VIEW, slow, np.array([0, 40, 90, 200]))
    # 900 and 500 tokens; 0 and fewer, where one is always computed.
    assert priced.tolist() == pytest.approx([2 * 0.92, 2 * 0.51, 2 * 0.011, 2 * 0.011])


@given(
    known=st.binary(max_size=300),
    arrived=st.integers(0, 300),
    tiers=st.lists(
        st.builds(
            TierView,
            st.integers(1, 7),
            st.floats(0, 1e9),
            st.floats(0, 10),
            st.floats(0, 1e9),
        ),
        max_size=7,
        unique_by=lambda tier: tier.place,
    ),
)
def test_candidates_are_in_order_and_bounded(
    known: bytes, arrived: int, tiers: list[TierView]
) -> None:
    arrived = min(arrived, len(known))
    view = change(known=known, arrived_pages=arrived, tiers=tuple(tiers))
    found = list_candidates(view, PRICES)
    assert 1 <= found.pages.size <= MAX_CANDIDATES
    assert (found.pages[0], found.pages[-1]) == (arrived, len(known))
    assert (np.diff(found.pages) > 0).all()
    # More pages never come earlier, and never leave more to compute.
    assert (np.diff(found.arrival_s) >= 0).all()
    assert (np.diff(found.compute_s) <= 0).all()
    assert found.arrival_s[0] == 0
