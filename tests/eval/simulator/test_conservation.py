"""Whatever comes, under every policy: nobody is lost, served twice or left waiting for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.eval.requests import Ending, Limits, Observed
from bana.eval.simulator.engine_spec import EngineSpec, Overtaking
from bana.eval.simulator.log import Entry, Happening
from bana.eval.simulator.store.spec import StoreSpec, TierSpec, Weather, Writes
from bana.slo.governor import GOVERNORS
from bana.slo.order import ORDERS
from bana.slo.restore import RESTORES

Make = Callable[..., Any]

LIMITS = st.builds(
    Limits, ttft_s=st.none() | st.floats(0.01, 5), tpot_s=st.none() | st.floats(0.001, 0.5)
)
ASKS = st.lists(
    st.fixed_dictionaries(
        {
            "due_s": st.floats(0, 2),
            "prompt": st.integers(1, 90),
            "output": st.integers(1, 30),
            "shared": st.integers(0, 60),
            "is_open_ended": st.booleans(),
            "cancel_after_s": st.none() | st.floats(0.001, 1),
            "limits": LIMITS,
        }
    ),
    min_size=1,
    max_size=12,
)


@st.composite
def engines(draw: st.DrawFn) -> EngineSpec:
    page = draw(st.sampled_from([1, 4, 16]))
    return EngineSpec(
        # The largest request has 120 tokens.
        kv_tokens=page * draw(st.integers(120 // page + 4, 400 // page + 4)),
        page_tokens=page,
        chunk_tokens=page * draw(st.integers(1, 64 // page)),
        max_running=draw(st.integers(1, 6)),
        max_half_done=draw(st.integers(1, 4)),
        can_mix=draw(st.booleans()),
        has_prefix_cache=draw(st.booleans()),
        overtaking=draw(st.sampled_from(Overtaking)),
        head_rows=draw(st.integers(1, 8)),
    )


ADMISSIONS = [None, "accept", "reject_infeasible"]
LAST_S = 1000.0


@settings(deadline=None, max_examples=100)
@given(
    ASKS,
    engines(),
    st.sampled_from(ORDERS.names()),
    st.sampled_from(GOVERNORS.names()),
    st.sampled_from(ADMISSIONS),
)
def test_every_request_ends_once_within_bounds(
    server: Any,
    ask: Make,
    asks: list[dict[str, Any]],
    engine: EngineSpec,
    order: str,
    governor: str,
    admission: str | None,
) -> None:
    made = [ask(**{**one, "shared": min(one["shared"], one["prompt"])}) for one in asks]
    # Comes when all is over, and sees what they have left behind.
    made.append(ask(due_s=LAST_S, prompt=20, output=1))
    ready = server.but(engine=engine, order=order, governor=governor, admission=admission)
    served = ready.serve(made)
    check_endings(served.observed, served.log.kept)
    check_bounds([e for e in served.log.kept if e.kind is Happening.STEP], engine)


def check_endings(observed: tuple[Observed, ...], entries: list[Entry]) -> None:
    over = {Happening.FINISHED, Happening.CANCELLED, Happening.REJECTED, Happening.FAILED}
    ends = Counter(e.subject for e in entries if e.kind in over)
    assert ends == Counter(range(len(observed)))
    for seen in observed:
        assert seen.ending in (Ending.FINISHED, Ending.CANCELLED, Ending.REJECTED)
        assert all(a < b for a, b in pairwise(seen.event_times_s))
        assert all(seen.due_s < at_s <= seen.end_s for at_s in seen.event_times_s)
        if seen.ending is Ending.FINISHED:
            assert seen.output_tokens == seen.asked_tokens
            assert seen.end_s == seen.last_s
        if seen.ending is Ending.REJECTED:
            assert seen.output_tokens == 0


def check_bounds(steps: list[Entry], engine: EngineSpec) -> None:
    assert max(e.decodes for e in steps) <= engine.max_running
    assert max(e.half_done for e in steps) <= engine.max_half_done
    assert max(e.decodes + e.half_done for e in steps) <= engine.max_running
    assert max(e.subject for e in steps) <= engine.chunk_tokens
    assert all(0 <= e.available_pages <= engine.kv_pages for e in steps)
    [*_, last] = [e for e in steps if e.at_s >= LAST_S]
    assert last.available_pages == engine.kv_pages - -(-20 // engine.page_tokens)


@st.composite
def stores(draw: st.DrawFn) -> StoreSpec:
    speeds = draw(st.lists(st.floats(1e2, 1e7), max_size=2))
    tiers = {
        f"tier{number}": TierSpec(
            bytes_per_s=speed,
            latency_ms=draw(st.sampled_from([0.0, 3.0])),
            jitter=draw(st.sampled_from([0.0, 0.5])),
            capacity_pages=draw(st.none() | st.integers(1, 12)),
        )
        for number, speed in enumerate(speeds)
    }
    return StoreSpec(
        tiers=tiers,
        token_bytes=draw(st.sampled_from([1, 100])),
        arena_pages=draw(st.none() | st.integers(1, 12)),
        lot_pages=draw(st.integers(1, 4)),
        answer_ms=draw(st.sampled_from([0.0, 1.0])),
        patience_ms=draw(st.sampled_from([0.0, 2.0])),
        copy_page_ms=draw(st.sampled_from([0.0, 1.0])),
        write_delay_ms=draw(st.sampled_from([0.0, 50.0])),
        writes=draw(st.sampled_from(Writes)),
        weather=draw(st.sampled_from(Weather)),
    )


@settings(deadline=None, max_examples=100)
@given(
    ASKS,
    engines(),
    stores(),
    st.sampled_from([*((name, {}) for name in RESTORES.names()), ("planned", {"meet": True})]),
    st.sampled_from(ORDERS.names()),
)
def test_a_store_loses_nobody_and_every_prompt_token_has_one_source(
    server: Any,
    ask: Make,
    asks: list[dict[str, Any]],
    engine: EngineSpec,
    store: StoreSpec,
    restore: tuple[str, dict[str, object]],
    order: str,
) -> None:
    made = [ask(**{**one, "shared": min(one["shared"], one["prompt"])}) for one in asks]
    made.append(ask(due_s=LAST_S, prompt=20, output=1))
    policy, options = restore
    ready = server.but(
        engine=engine, store=store, restore=policy, options={"restore": options}, order=order
    )
    served = ready.serve(made)
    check_endings(served.observed, served.log.kept)
    check_bounds([e for e in served.log.kept if e.kind is Happening.STEP], engine)
    sources = served.run.sources
    assert all(tokens >= 0 for tokens in sources.values())
    assert sum(sources.values()) <= sum(one.prompt for one in made)
    if all(one.ending is Ending.FINISHED for one in served.observed):
        assert sum(sources.values()) == sum(one.prompt for one in made)
    assert ready.serve(made).run.event_hash == served.run.event_hash


@pytest.mark.parametrize("order", ORDERS.names())
def test_a_long_prompt_among_many_short_ones_is_served(server: Any, ask: Make, order: str) -> None:
    """Load within capacity: no order may keep one waiting until all others are over."""
    short = [ask(due_s=0.05 * n, prompt=20, limits=Limits(ttft_s=1.0)) for n in range(400)]
    long = ask(due_s=0.01, prompt=600, limits=Limits(ttft_s=6.0))
    seen = server.but(chunk_tokens=64, order=order).serve([long, *short]).observed
    served_long = next(one for one in seen if one.prompt_tokens == 600)
    assert served_long.ending is Ending.FINISHED
    if order != "sjf":
        assert served_long.end_s < 15.0
