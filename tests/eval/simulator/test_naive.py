"""The simulator against an engine without shortcuts: equal to the last bit but for rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.eval.simulator.engine_spec import EngineSpec, Overtaking
from bana.eval.simulator.naive import NaiveEngine, Steps
from bana.slo.steps import StepModel

Make = Callable[..., Any]

# Every coefficient counts, none is a multiple of another.
TIMES = StepModel(0.0101, 0.00103, 0.0000107, 0.0091, 0.00211, 0.000031)
ASKS = st.lists(
    st.fixed_dictionaries(
        {
            "due_s": st.floats(0, 1.5),
            "prompt": st.integers(1, 60),
            "output": st.integers(1, 25),
            "shared": st.integers(0, 50),
            "is_open_ended": st.booleans(),
        }
    ),
    min_size=1,
    max_size=10,
)
PAGES = st.sampled_from([1, 3, 8])
GOVERNORS: Mapping[Steps, tuple[str, dict[str, object]]] = {
    Steps.PROMPTS_FIRST: ("prefill_first", {}),
    Steps.MIXED: ("fixed_chunk", {"decodes": 0, "chunk_tokens": 100_000}),
}


def compare(server: Any, asks: list[Any], offered: Any, engine: EngineSpec, steps: Steps) -> None:
    governor, options = GOVERNORS[steps]
    ready = server.but(times=TIMES, model=TIMES, governor=governor, options={"governor": options})
    served = ready.but(engine=engine).serve(asks)
    expected = NaiveEngine(engine, TIMES, steps).serve(offered.requests)
    for seen, times_s in zip(served.observed, expected, strict=True):
        assert seen.event_times_s == pytest.approx(times_s)


def build_engine(page: int, chunk: int, running: int, kv_tokens: int) -> EngineSpec:
    return EngineSpec(
        kv_tokens=kv_tokens,
        page_tokens=page,
        chunk_tokens=page * chunk,
        max_running=running,
        can_mix=True,
        overtaking=Overtaking.NEVER,
        head_rows=1000,
    )


@settings(deadline=None, max_examples=40)
@given(ASKS, PAGES, st.integers(1, 30), st.integers(1, 6), st.sampled_from(Steps))
def test_with_a_prefix_cache_and_ample_kv(
    server: Any,
    ask: Make,
    offer_asks: Make,
    asks: list[dict[str, Any]],
    page: int,
    chunk: int,
    running: int,
    steps: Steps,
) -> None:
    made = [ask(**{**one, "shared": min(one["shared"], one["prompt"])}) for one in asks]
    engine = build_engine(page, chunk, running, 1_000_000)
    compare(server, made, offer_asks(made), engine, steps)


@settings(deadline=None, max_examples=40)
@given(ASKS, PAGES, st.integers(1, 30), st.integers(110, 250), st.sampled_from(Steps))
def test_with_scarce_kv_and_retraction(
    server: Any,
    ask: Make,
    offer_asks: Make,
    asks: list[dict[str, Any]],
    page: int,
    chunk: int,
    kv_tokens: int,
    steps: Steps,
) -> None:
    made = [ask(**{**one, "shared": 0}) for one in asks]
    engine = msgspec.structs.replace(
        build_engine(page, chunk, 6, kv_tokens), has_prefix_cache=False
    )
    compare(server, made, offer_asks(made), engine, steps)


def test_a_chunk_is_charged_in_whole_pages(server: Any, ask: Make, offer_asks: Make) -> None:
    """As SGLang's PrefillAdder counts: beside one token of a page of three, three of six fit."""
    made = [ask(due_s=0.0, prompt=n, output=1, shared=0, is_open_ended=False) for n in (1, 6, 1)]
    engine = build_engine(3, 2, 3, 1_000_000)
    compare(server, made, offer_asks(made), engine, Steps.PROMPTS_FIRST)
    ready = server.but(times=TIMES, model=TIMES, governor="prefill_first", engine=engine)
    first, _, third = [seen.event_times_s[0] for seen in ready.serve(made).observed]
    assert third > first
