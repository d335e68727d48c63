"""Chunks against arithmetic done by hand, and gaps against promises in a simulated engine."""

from __future__ import annotations

import functools

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bana.slo.errors import ConfigError
from bana.slo.governor import GOVERNORS, Governor, StepKind, StepPlan, StepView
from bana.slo.steps import StepModel, StepShape, count_attended

# A decode step takes 21 ms, a chunk 10 ms and 0.1 ms a token.
LINEAR = StepModel(0.010, 1e-4, 0.0, 0.021, 0.0, 0.0)
VIEW = StepView(
    model=LINEAR,
    decode_requests=4,
    context_tokens=4000,
    tightest_tpot_s=0.1,
    prefill_tokens=10_000,
    prefix_tokens=0,
    decodes_since_prefill=1,
    max_chunk_tokens=2048,
    page_tokens=16,
)


def _view(**changes: object) -> StepView:
    return msgspec.structs.replace(VIEW, **changes)


def _decode_base(decode_s: float) -> StepModel:
    return msgspec.structs.replace(LINEAR, decode_base_s=decode_s)


@functools.cache
def _build(name: str, **options: object) -> Governor:
    """One governor for all examples: asking the registry reads every installed distribution."""
    return GOVERNORS.create(name, options)


def _decide(view: StepView, name: str = "tpot", **options: object) -> StepPlan:
    return _build(name, **options).decide_step(view)


def _measure_s(view: StepView, plan: StepPlan) -> float:
    """What the step takes if the view's model is the truth."""
    decodes = plan.kind is not StepKind.PREFILL
    shape = StepShape(
        prefill_tokens=plan.prefill_tokens,
        attended_tokens=count_attended(plan.prefill_tokens, view.prefix_tokens),
        decode_requests=view.decode_requests * decodes,
        context_tokens=view.context_tokens * decodes,
    )
    return view.model.estimate_step_s(shape)


def test_the_largest_chunk_that_fits() -> None:
    # 0.92 of 100 ms leave 71 ms for the chunk: 610 tokens, 38 whole pages.
    assert _decide(VIEW) == StepPlan(StepKind.PREFILL, 608, "tpot")
    assert _decide(_view(page_tokens=1)).prefill_tokens == 610
    assert _decide(_view(page_tokens=1), margin=0.5).prefill_tokens == 190


def test_a_mixed_step_pays_one_base() -> None:
    # The decode step's base covers the chunk's: 71 ms are 710 tokens, 44 pages.
    assert _decide(_view(can_mix=True)) == StepPlan(StepKind.MIXED, 704, "tpot")
    # Here the chunk's base is larger: 2 ms more than the decode's, 52 ms are left for tokens.
    model = StepModel(0.040, 1e-4, 0.0, 0.038, 0.0, 0.0)
    mixed = _decide(_view(model=model, can_mix=True))
    assert mixed == StepPlan(StepKind.MIXED, 512, "tpot")


@pytest.mark.parametrize("base", ["prefill_base_s", "decode_base_s"])
def test_it_mixes_only_where_that_is_cheaper(base: str) -> None:
    model = msgspec.structs.replace(LINEAR, **{base: 0.0})
    assert _decide(_view(model=model, can_mix=True)).kind is StepKind.PREFILL


def test_a_chunk_that_ends_the_prompt_is_not_rounded() -> None:
    assert _decide(_view(prefill_tokens=333)) == StepPlan(StepKind.PREFILL, 333, "full")
    assert _decide(_view(prefill_tokens=609)).prefill_tokens == 609
    assert _decide(_view(prefill_tokens=611)).prefill_tokens == 608


def test_without_decodes_chunks_are_full() -> None:
    alone = _view(decode_requests=0, context_tokens=0, tightest_tpot_s=None, max_chunk_tokens=2050)
    assert _decide(alone) == StepPlan(StepKind.PREFILL, 2048, "no_decodes")


def test_where_nothing_is_promised_chunks_are_full() -> None:
    assert _decide(_view(tightest_tpot_s=None)) == StepPlan(StepKind.PREFILL, 2048, "no_limit")
    assert _decide(_view(tightest_tpot_s=9.0)) == StepPlan(StepKind.PREFILL, 2048, "full")


def test_a_chunk_is_no_longer_than_a_share_of_the_tightest_ttft() -> None:
    # A fifth of 0.5 s leaves 90 ms for tokens.
    alone = _view(decode_requests=0, context_tokens=0, tightest_tpot_s=None, tightest_ttft_s=0.5)
    assert _decide(alone) == StepPlan(StepKind.PREFILL, 896, "no_decodes")
    assert _decide(msgspec.structs.replace(alone, tightest_ttft_s=5.0)).prefill_tokens == 2048
    # The TPOT limit would leave room for more.
    beside = _view(tightest_tpot_s=9.0, tightest_ttft_s=0.8)
    assert _decide(beside) == StepPlan(StepKind.PREFILL, 1488, "full")
    assert _decide(beside, ttft_share=0.1, fixed_share=0.5).prefill_tokens == 688


@pytest.mark.parametrize("ttft_s", [0.1, 1e-6, 0.0, -1.0])
def test_no_chunk_is_made_so_small_that_its_fixed_costs_prevail(ttft_s: float) -> None:
    # 10 ms are a fifth of 50 ms, beside a decode step 31 ms of 155 ms.
    alone = _view(decode_requests=0, context_tokens=0, tightest_tpot_s=None, tightest_ttft_s=ttft_s)
    assert _decide(alone).prefill_tokens == 400
    assert _decide(_view(tightest_tpot_s=9.0, tightest_ttft_s=ttft_s)).prefill_tokens == 1232


def test_where_steps_have_no_fixed_costs_the_floor_is_the_smallest_chunk() -> None:
    free = msgspec.structs.replace(LINEAR, prefill_base_s=0.0)
    alone = _view(model=free, decode_requests=0, context_tokens=0, tightest_tpot_s=None)
    assert _decide(msgspec.structs.replace(alone, tightest_ttft_s=1e-6)).prefill_tokens == 64
    wide = msgspec.structs.replace(alone, tightest_ttft_s=1e-6, page_tokens=256)
    assert _decide(wide).prefill_tokens == 256


def test_unmeasured_work_costs_nothing() -> None:
    unknown = _view(model=StepModel(0, 0, 0, 0, 0, 0))
    assert _decide(unknown) == StepPlan(StepKind.PREFILL, 2048, "full")


@pytest.mark.parametrize("can_mix", [False, True])
def test_decodes_come_after_a_chunk(can_mix: bool) -> None:
    after = _view(decodes_since_prefill=0, can_mix=can_mix)
    assert _decide(after) == StepPlan(StepKind.DECODE, 0, "alternate")


def test_the_floor_waits_for_decodes_that_pay_for_it() -> None:
    # A decode step of 40 ms leaves 6 of 46 ms; the floor takes 16.4 ms, three decodes' worth.
    tight = {"model": _decode_base(0.040), "tightest_tpot_s": 0.05}
    for decodes in (1, 2):
        waiting = _view(**tight, decodes_since_prefill=decodes)
        assert _decide(waiting) == StepPlan(StepKind.DECODE, 0, "average")
    paid = _view(**tight, decodes_since_prefill=3)
    assert _decide(paid) == StepPlan(StepKind.PREFILL, 64, "floor")


def test_a_mixed_floor_waits_for_the_decodes_beside_it() -> None:
    # Mixed, the floor adds 6.4 ms alone: two decodes' worth, its own among them.
    tight = _view(model=_decode_base(0.040), tightest_tpot_s=0.05, can_mix=True)
    assert _decide(tight).kind is StepKind.DECODE
    paid = msgspec.structs.replace(tight, decodes_since_prefill=2)
    assert _decide(paid) == StepPlan(StepKind.MIXED, 64, "floor")


def test_the_wait_is_bounded_and_may_use_up_the_margin() -> None:
    # 1 ms a step would pay after 17 decodes; the bound of 8 stays within the promise itself.
    tight = {"model": _decode_base(0.045), "tightest_tpot_s": 0.05}
    assert _decide(_view(**tight, decodes_since_prefill=7)).kind is StepKind.DECODE
    assert _decide(_view(**tight, decodes_since_prefill=8)).reason == "floor"
    assert _decide(_view(**tight, decodes_since_prefill=4), max_decodes=4).reason == "floor"
    assert _decide(_view(**tight, decodes_since_prefill=3), max_decodes=3).reason == "trade"


def test_what_cannot_be_held_is_shared_by_halves() -> None:
    # A chunk as long as the decode step, 60 ms: 500 tokens, 31 pages.
    lost = {"model": _decode_base(0.060), "tightest_tpot_s": 0.05}
    assert _decide(_view(**lost)) == StepPlan(StepKind.PREFILL, 496, "trade")
    dear = msgspec.structs.replace(_decode_base(0.060), prefill_base_s=0.2)
    assert _decide(_view(**lost | {"model": dear})) == StepPlan(StepKind.PREFILL, 64, "trade")


def test_early_tokens_pay_for_a_longer_chunk() -> None:
    # 0.92 of 300 ms leave 255 ms for the chunk: 2450 tokens, so that all that waits goes.
    ahead = _view(spare_s=0.3, prefill_tokens=2040)
    assert _decide(ahead) == StepPlan(StepKind.PREFILL, 2040, "full")
    # One gap alone, as after the first token.
    assert _decide(_view(spare_s=0.1)) == _decide(VIEW)


def test_nobody_is_held_up_for_more_than_so_many_gaps() -> None:
    far_ahead = _view(spare_s=60.0, max_chunk_tokens=8192)
    # 0.92 of 400 ms leave 347 ms: 3370 tokens, 210 pages.
    assert _decide(far_ahead) == StepPlan(StepKind.PREFILL, 3360, "tpot")
    assert _decide(far_ahead, max_gaps=1.0) == _decide(_view(max_chunk_tokens=8192))


def test_decodes_go_on_until_the_floor_is_earned() -> None:
    owing = _view(spare_s=-0.2, decodes_since_prefill=3)
    assert _decide(owing) == StepPlan(StepKind.DECODE, 0, "average")
    assert _decide(_view(spare_s=-0.2, decodes_since_prefill=8)).reason == "floor"
    assert _decide(_view(spare_s=0.045, decodes_since_prefill=3)).reason == "tpot"


def test_a_debt_does_not_change_what_can_be_held_at_all() -> None:
    lost = {"model": _decode_base(0.060), "tightest_tpot_s": 0.05}
    assert _decide(_view(**lost, spare_s=-0.2)).reason == "trade"


def test_the_floor_is_an_option() -> None:
    tight = {"model": _decode_base(0.040), "tightest_tpot_s": 0.061}
    assert _decide(_view(**tight, decodes_since_prefill=9), floor_tokens=160).prefill_tokens == 160
    assert _decide(_view(**tight, page_tokens=1), floor_tokens=16).prefill_tokens == 61
    assert _decide(_view(**tight, prefill_tokens=7, decodes_since_prefill=9)).prefill_tokens == 7


MODELS = st.builds(
    StepModel,
    prefill_base_s=st.floats(0, 0.1),
    prefill_token_s=st.floats(0, 1e-3),
    attended_token_s=st.floats(0, 1e-6),
    decode_base_s=st.floats(1e-3, 0.1),
    decode_request_s=st.floats(0, 1e-3),
    context_token_s=st.floats(0, 1e-6),
)
VIEWS = st.builds(
    StepView,
    model=MODELS,
    decode_requests=st.integers(1, 64),
    context_tokens=st.integers(64, 100_000),
    tightest_tpot_s=st.floats(0.01, 1.0),
    prefill_tokens=st.integers(1, 50_000),
    prefix_tokens=st.integers(0, 50_000),
    decodes_since_prefill=st.just(1),
    max_chunk_tokens=st.sampled_from([256, 2048, 8192]),
    page_tokens=st.sampled_from([1, 16]),
    can_mix=st.booleans(),
)


@settings(deadline=None)
@given(view=VIEWS)
def test_one_page_more_would_not_fit(view: StepView) -> None:
    plan = _decide(view, margin=1.0)
    assume(plan.reason == "tpot")
    decode_s = _measure_s(view, StepPlan(StepKind.DECODE, 0, ""))
    before_s = decode_s if plan.kind is StepKind.PREFILL else 0.0
    assert view.tightest_tpot_s is not None
    assert before_s + _measure_s(view, plan) <= view.tightest_tpot_s * (1 + 1e-9)
    more = StepPlan(plan.kind, plan.prefill_tokens + view.page_tokens, "")
    assert before_s + _measure_s(view, more) > view.tightest_tpot_s * (1 - 1e-9)


def _advance(view: StepView, plan: StepPlan) -> StepView:
    decoded = plan.kind is not StepKind.PREFILL
    since = 0 if plan.prefill_tokens else view.decodes_since_prefill
    return msgspec.structs.replace(
        view,
        context_tokens=view.context_tokens + view.decode_requests * decoded,
        prefill_tokens=view.prefill_tokens - plan.prefill_tokens,
        prefix_tokens=view.prefix_tokens + plan.prefill_tokens,
        decodes_since_prefill=since + decoded,
    )


def _permits(view: StepView, kind: StepKind, max_decodes: int) -> bool:
    """Whether a floor chunk after `max_decodes` decode steps leaves the limit whole."""
    assert view.tightest_tpot_s is not None
    decode_s = _measure_s(view, StepPlan(StepKind.DECODE, 0, ""))
    floor = min(64, view.prefill_tokens)
    added_s = _measure_s(view, StepPlan(kind, floor, ""))
    added_s -= decode_s if kind is StepKind.MIXED else 0.0
    return decode_s + added_s / max_decodes <= view.tightest_tpot_s * (1 - 1e-9)


@settings(deadline=None)
@given(view=VIEWS, max_decodes=st.integers(1, 12))
def test_gaps_hold_on_average_where_the_floor_permits(view: StepView, max_decodes: int) -> None:
    governor = _build("tpot", max_decodes=max_decodes)
    assert view.tightest_tpot_s is not None
    view, time_s, gaps = msgspec.structs.replace(view, decodes_since_prefill=0), 0.0, 0
    for _ in range(200):
        plan = governor.decide_step(view)
        # From behind one chunk to the end of the next; a chunk lengthens the gap before it.
        time_s += _measure_s(view, plan)
        gaps += plan.kind is not StepKind.PREFILL
        if plan.reason == "trade":
            assert not _permits(view, plan.kind, max_decodes)
        elif plan.prefill_tokens:
            assert time_s / gaps <= view.tightest_tpot_s * (1 + 1e-9)
        if plan.prefill_tokens:
            time_s, gaps = 0.0, 0
        view = _advance(view, plan)


def test_prefill_first_lets_decodes_wait() -> None:
    after = _view(decodes_since_prefill=0, can_mix=True)
    assert _decide(after, "prefill_first") == StepPlan(StepKind.PREFILL, 2048, "prompts")
    assert _decide(_view(prefill_tokens=0), "prefill_first").kind is StepKind.DECODE


def test_a_fixed_chunk_alternates_with_its_decodes() -> None:
    name = "fixed_chunk"
    assert _decide(VIEW, name) == StepPlan(StepKind.PREFILL, 512, "fixed")
    assert _decide(_view(can_mix=True), name).kind is StepKind.PREFILL
    assert _decide(_view(decodes_since_prefill=0), name).kind is StepKind.DECODE
    assert _decide(_view(decodes_since_prefill=2), name, decodes=3).kind is StepKind.DECODE
    assert _decide(_view(decodes_since_prefill=3), name, decodes=3).kind is StepKind.PREFILL
    assert _decide(VIEW, name, chunk_tokens=100).prefill_tokens == 96
    alone = _view(decode_requests=0, decodes_since_prefill=0)
    assert _decide(alone, name).prefill_tokens == 512


def test_a_fixed_chunk_without_decodes_mixes_where_it_can() -> None:
    after = _view(decodes_since_prefill=0, can_mix=True)
    assert _decide(after, "fixed_chunk", decodes=0) == StepPlan(StepKind.MIXED, 512, "fixed")
    apart = _view(decodes_since_prefill=0)
    assert _decide(apart, "fixed_chunk", decodes=0).kind is StepKind.DECODE
    assert _decide(VIEW, "fixed_chunk", decodes=0).kind is StepKind.PREFILL


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tpot", {"margin": 0.0}),
        ("tpot", {"margin": 1.01}),
        ("tpot", {"floor_tokens": 0}),
        ("tpot", {"max_decodes": 0}),
        ("tpot", {"margn": 0.9}),
        ("fixed_chunk", {"chunk_tokens": 0}),
        ("fixed_chunk", {"decodes": -1}),
        ("prefill_first", {"margin": 0.9}),
    ],
)
def test_options_out_of_bounds_are_refused(name: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        GOVERNORS.create(name, options)
