"""How much longer prompts take, and whose they were."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.slo.inflation import LoadOptions, LoadTracker, estimate_inflation
from bana.slo.steps import StepModel, StepShape

MODEL = StepModel(
    prefill_base_s=0.01,
    prefill_token_s=1e-4,
    attended_token_s=0.0,
    decode_base_s=0.02,
    decode_request_s=1e-3,
    context_token_s=0.0,
)
CHUNK = StepShape(prefill_tokens=400, attended_tokens=80_200)
FULL = StepShape(decode_requests=30, context_tokens=30_000)


def test_nothing_observed_is_no_load() -> None:
    tracker = LoadTracker()
    assert tracker.inflation == 1.0
    assert tracker.demoted_share == 0.0


def test_inflation_is_wall_time_over_time_alone() -> None:
    tracker = LoadTracker(LoadOptions(memory_chunks=4, surge=100))
    tracker.observe_chunk(wall_s=0.2, alone_s=0.1)
    assert tracker.inflation == pytest.approx(2.0)
    tracker.observe_chunk(wall_s=0.4, alone_s=0.1)
    assert tracker.inflation == pytest.approx((0.75 * 0.2 + 0.4) / (0.75 * 0.1 + 0.1))


def test_it_follows_a_change_within_its_memory() -> None:
    tracker = LoadTracker(LoadOptions(memory_chunks=8))
    for wall_s in [0.1] * 50 + [0.5] * 50:
        tracker.observe_chunk(wall_s, 0.1)
    assert tracker.inflation == pytest.approx(5.0, rel=0.01)


def test_a_short_chunk_weighs_little() -> None:
    tracker = LoadTracker()
    tracker.observe_chunk(1.0, 1.0)
    tracker.observe_chunk(0.004, 0.001)
    assert tracker.inflation < 1.01


def test_it_is_never_below_one() -> None:
    tracker = LoadTracker()
    for _ in range(10):
        tracker.observe_chunk(0.01, 0.1)
    tracker.observe_chunk(0.2, 0.1)
    assert tracker.inflation > 1.0


def test_a_stall_is_no_load() -> None:
    tracker = LoadTracker()
    for _ in range(40):
        tracker.observe_chunk(0.1, 0.05)
    tracker.observe_chunk(10.0, 0.05)
    assert tracker.inflation < 2.5


def test_an_idle_engine_shares_its_time_with_nobody() -> None:
    tracker = LoadTracker()
    tracker.observe_chunk(0.3, 0.1)
    tracker.observe_idle()
    assert tracker.inflation == 1.0


@pytest.mark.parametrize("alone_s", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("wall_s", [0.5, math.nan, math.inf, -1.0])
def test_what_is_no_measurement_changes_nothing(alone_s: float, wall_s: float) -> None:
    tracker = LoadTracker()
    tracker.observe_chunk(0.2, 0.1)
    tracker.observe_chunk(wall_s, alone_s)
    assert tracker.inflation == pytest.approx(2.0)
    tracker.observe_chunk(math.nan, 0.1)
    assert tracker.inflation == pytest.approx(2.0)


def test_a_full_instance_decodes_a_full_batch_between_chunks() -> None:
    assert estimate_inflation(MODEL, CHUNK, FULL) == pytest.approx((0.05 + 0.05) / 0.05)
    assert estimate_inflation(MODEL, CHUNK, StepShape()) == 1.0
    assert estimate_inflation(StepModel(0, 0, 0, 0, 0, 0), CHUNK, FULL) == 1.0


def test_the_load_holds_all_three() -> None:
    tracker = LoadTracker()
    tracker.observe_chunk(0.3, 0.1)
    tracker.observe_portion(300, 0)
    tracker.observe_portion(100, 100)
    load = tracker.estimate_load(MODEL, CHUNK, FULL)
    assert load.inflation == pytest.approx(3.0)
    assert load.full_inflation == pytest.approx(2.0)
    assert load.demoted_share == pytest.approx(0.25)


def test_the_share_is_that_of_the_window() -> None:
    tracker = LoadTracker(LoadOptions(window_tokens=1000))
    tracker.observe_portion(500, 500)
    tracker.observe_portion(500, 0)
    assert tracker.demoted_share == pytest.approx(0.5)
    tracker.observe_portion(250, 0)
    assert tracker.demoted_share == pytest.approx(0.4)
    tracker.observe_portion(250, 0)
    assert tracker.demoted_share == 0.0


@given(
    admissions=st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=60),
    window_tokens=st.integers(1, 200),
    window_portions=st.integers(1, 20),
)
def test_the_share_agrees_with_a_recount(
    admissions: list[tuple[int, bool]], window_tokens: int, window_portions: int
) -> None:
    options = LoadOptions(window_tokens=window_tokens, window_portions=window_portions)
    tracker = LoadTracker(options)
    for tokens, is_demoted in admissions:
        tracker.observe_portion(tokens, tokens * is_demoted)
    kept: list[tuple[int, bool]] = []
    for tokens, is_demoted in reversed(admissions):
        if len(kept) == window_portions or sum(t for t, _ in kept) >= window_tokens:
            break
        kept.append((tokens, is_demoted))
    total = sum(t for t, _ in kept)
    demoted = sum(t for t, is_demoted in kept if is_demoted)
    assert tracker.demoted_share == pytest.approx(demoted / total if total else 0.0)
