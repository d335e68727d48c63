"""Chunks that end where kernels want them to: a smaller one SGLang would cut down to nothing."""

from __future__ import annotations

import pytest

from bana.slo.governor import FixedChunk, FixedChunkOptions
from bana.slo.order import ORDERS

from .asks import ask
from .books import check_books
from .fake_engine import FakeEngine, build_engine, replace_policies
from .test_short_of_kv import leave_pages

GRID = 32


def build(**more: object) -> FakeEngine:
    """An engine whose governor wants smaller chunks than its kernels do."""
    engine = build_engine(chunk_tokens=64, **more)
    engine.truncation_align_size = GRID
    fixed = FixedChunk(FixedChunkOptions(chunk_tokens=16))
    replace_policies(engine, order=ORDERS.create("edf"), governor=fixed)
    return engine


@pytest.mark.parametrize("is_overlapping", [False, True])
def test_every_chunk_but_the_last_is_on_the_grid(is_overlapping: bool) -> None:
    engine = build(is_overlapping=is_overlapping)
    engine.step(ask("long", 75))
    seen = [engine.computed["long"]]
    while engine.chunked_req is not None:
        engine.step()
        seen.append(engine.computed["long"])
    assert seen == [32, 64, 75]
    engine.run_dry()
    check_books(engine)


def test_a_shared_step_leaves_the_long_prompt_a_whole_piece_of_the_grid() -> None:
    engine = build()
    replace_policies(engine, order=ORDERS.create("edf"))
    engine.step(ask("long", 200, due_s=90.0))
    assert sorted(engine.step(ask("tight", 9, due_s=1.0))) == ["long", "tight"]
    assert engine.computed == {"long": 96, "tight": 9}
    engine.run_dry()
    check_books(engine)


def test_where_kv_is_short_a_chunk_ends_on_the_grid_or_waits() -> None:
    engine = build()
    engine.step(ask("old", 9, new_tokens=150))
    while not engine.computed["long"]:
        engine.step(*([] if engine.waiting_queue else [ask("long", 90)]))
    taken = leave_pages(engine, 11)
    while engine.computed["long"] == 32:
        engine.step()
    assert engine.computed["long"] == 64
    engine.token_to_kv_pool_allocator.free(taken)
    engine.run_dry()
    assert engine.computed["long"] == 90
    check_books(engine)


def test_fetched_pages_are_met_only_where_a_chunk_may_end_at_any() -> None:
    engine = build()
    assert not engine.can_meet
    engine.truncation_align_size = None
    assert engine.can_meet
