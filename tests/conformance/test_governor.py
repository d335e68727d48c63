"""The law of governors, held against whatever is registered."""

from __future__ import annotations

import functools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.slo.governor import DEFAULT_GOVERNOR, GOVERNORS, Governor, StepKind, StepPlan, StepView
from bana.slo.steps import StepModel

SECONDS = st.just(0.0) | st.floats(1e-12, 100.0)
TOKENS = st.integers(0, 2**40)
# More decode steps than this in a row, while prompts wait, is starvation.
MOST_DECODES = 64
# SGLang's own order lets decodes wait as long as prompts wait; that is what it is measured for.
STARVES_DECODES = {"prefill_first"}

every_governor = pytest.mark.parametrize("name", GOVERNORS.names())


@st.composite
def step_views(draw: st.DrawFn) -> StepView:
    """Any view that an engine may build, extremes included."""
    coefficients = [draw(SECONDS) for _ in StepModel.__struct_fields__]
    decode_requests = draw(st.integers(0, 10_000))
    tpot_s = st.none() | st.floats(1e-9, 1e6)
    page_tokens = draw(st.sampled_from([1, 16, 64, 256]))
    return StepView(
        model=StepModel(*coefficients),
        decode_requests=decode_requests,
        context_tokens=draw(TOKENS) if decode_requests else 0,
        tightest_tpot_s=draw(tpot_s) if decode_requests else None,
        prefill_tokens=draw(TOKENS),
        prefix_tokens=draw(TOKENS),
        decodes_since_prefill=draw(st.integers(0, 2**31)),
        max_chunk_tokens=draw(st.integers(1, 2**20)),
        page_tokens=page_tokens,
        can_mix=draw(st.booleans()),
        spare_s=draw(st.none() | st.floats(-1e6, 1e6)) if decode_requests else None,
        tightest_ttft_s=draw(st.none() | st.floats(-1e6, 1e6)),
    )


@functools.cache
def _build(name: str, copy: int = 0) -> Governor:
    """One governor for all examples: asking the registry reads every installed distribution."""
    return GOVERNORS.create(name)


def _advance(view: StepView, plan: StepPlan) -> StepView:
    """The engine after the step, with the same requests decoding."""
    decoded = plan.kind is not StepKind.PREFILL
    since = 0 if plan.prefill_tokens else view.decodes_since_prefill
    return msgspec.structs.replace(
        view,
        context_tokens=view.context_tokens + view.decode_requests * decoded,
        prefill_tokens=view.prefill_tokens - plan.prefill_tokens,
        prefix_tokens=view.prefix_tokens + plan.prefill_tokens,
        decodes_since_prefill=since + decoded,
    )


@every_governor
@settings(deadline=None)
@given(view=step_views())
def test_it_plans_what_the_engine_can_do_and_says_why(name: str, view: StepView) -> None:
    plan = _build(name).decide_step(view)
    assert 0 <= plan.prefill_tokens <= min(view.max_chunk_tokens, view.prefill_tokens)
    if plan.kind is StepKind.PREFILL:
        assert (plan.prefill_tokens > 0) == (view.prefill_tokens > 0)
        assert plan.prefill_tokens > 0 or view.decode_requests == 0
    else:
        assert view.decode_requests > 0
    if plan.kind is StepKind.MIXED:
        assert view.can_mix
        assert plan.prefill_tokens > 0
    if plan.kind is StepKind.DECODE:
        assert plan.prefill_tokens == 0
    assert 0 < len(plan.reason) <= 64


@every_governor
@settings(deadline=None)
@given(view=step_views())
def test_a_chunk_that_ends_no_prompt_is_whole_pages(name: str, view: StepView) -> None:
    tokens = _build(name).decide_step(view).prefill_tokens
    if tokens < min(view.prefill_tokens, view.page_tokens):
        assert tokens in (0, view.max_chunk_tokens)
    elif tokens != view.prefill_tokens and view.max_chunk_tokens >= view.page_tokens:
        assert tokens % view.page_tokens == 0


@every_governor
@settings(deadline=None)
@given(view=step_views())
def test_equal_inputs_give_equal_answers(name: str, view: StepView) -> None:
    governor = _build(name)
    first = governor.decide_step(view)
    assert governor.decide_step(view) == first
    assert _build(name, copy=1).decide_step(view) == first


@every_governor
@settings(deadline=None)
@given(view=step_views())
def test_prompts_wait_for_a_bounded_number_of_decodes(name: str, view: StepView) -> None:
    governor, decodes = _build(name), 0
    view = msgspec.structs.replace(view, prefill_tokens=max(view.prefill_tokens, 1))
    view = msgspec.structs.replace(view, decodes_since_prefill=0)
    while not (plan := governor.decide_step(view)).prefill_tokens:
        view = _advance(view, plan)
        decodes += 1
        assert decodes <= MOST_DECODES


@pytest.mark.parametrize("name", sorted({*GOVERNORS.names()} - STARVES_DECODES))
@settings(deadline=None)
@given(view=step_views())
def test_running_requests_decode_after_every_chunk(name: str, view: StepView) -> None:
    governor, since_decode = _build(name), 0
    view = msgspec.structs.replace(view, decode_requests=max(view.decode_requests, 1))
    for _ in range(2 * MOST_DECODES):
        plan = governor.decide_step(view)
        since_decode = since_decode + 1 if plan.kind is StepKind.PREFILL else 0
        assert since_decode <= 1
        view = _advance(view, plan)


@every_governor
@settings(deadline=None)
@given(view=step_views())
def test_running_requests_decode_once_no_prompt_waits(name: str, view: StepView) -> None:
    view = msgspec.structs.replace(view, prefill_tokens=0)
    view = msgspec.structs.replace(view, decode_requests=max(view.decode_requests, 1))
    assert _build(name).decide_step(view).kind is StepKind.DECODE


@every_governor
def test_a_waiting_prompt_is_finished(name: str) -> None:
    governor, steps = _build(name), 0
    view = StepView(
        model=StepModel(0.01, 1e-4, 1e-9, 0.02, 1e-3, 1e-7),
        decode_requests=8,
        context_tokens=8000,
        tightest_tpot_s=0.05,
        prefill_tokens=20_001,
        prefix_tokens=0,
        decodes_since_prefill=0,
        max_chunk_tokens=2048,
        page_tokens=16,
    )
    while view.prefill_tokens:
        view = _advance(view, governor.decide_step(view))
        steps += 1
        assert steps <= 20_001 / 64 * 9


def test_the_default_is_registered() -> None:
    assert DEFAULT_GOVERNOR in GOVERNORS.names()
