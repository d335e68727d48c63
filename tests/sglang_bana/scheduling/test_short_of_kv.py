"""A prompt in chunks whose KV others have taken meanwhile: it takes what there is, or waits."""

from __future__ import annotations

import pytest

from .asks import ask
from .books import check_books
from .fake_engine import FakeEngine, build_engine
from .store_stand import add_store


def leave_pages(engine: FakeEngine, pages: int) -> list[int]:
    """Take all but `pages`, as answers that grow longer than expected do; the pages taken."""
    pool = engine.token_to_kv_pool_allocator
    return pool.alloc(len(pool.free_numbers) - pages)


def compute_beside_decodes(**more: object) -> FakeEngine:
    """`old` decodes, with more to come than there will be room for; `loose` is half computed."""
    engine = build_engine("edf", "stock", **more)
    engine.step(ask("old", 9, new_tokens=150))
    assert "loose" in engine.step(ask("loose", 60, due_s=90.0))
    return engine


@pytest.mark.parametrize("is_overlapping", [False, True])
@pytest.mark.parametrize("is_mixing", [False, True])
def test_a_chunk_takes_no_more_than_there_is(is_overlapping: bool, is_mixing: bool) -> None:
    engine = compute_beside_decodes(is_overlapping=is_overlapping, is_mixing=is_mixing)
    taken = leave_pages(engine, 3)
    before = engine.computed["loose"]
    engine.step()
    assert 0 < engine.computed["loose"] - before <= 12
    engine.token_to_kv_pool_allocator.free(taken)
    check_books(engine)
    engine.run_dry()
    assert engine.computed["loose"] == 60


@pytest.mark.parametrize("is_overlapping", [False, True])
def test_without_a_page_decodes_go_on_and_nobody_is_admitted(is_overlapping: bool) -> None:
    engine = compute_beside_decodes(is_overlapping=is_overlapping)
    engine.step()
    taken = leave_pages(engine, 0)
    # What it decodes next has a place in its last page.
    assert engine.step(ask("tight", 1, due_s=1.0, new_tokens=1)) == ["old"]
    engine.token_to_kv_pool_allocator.free(taken)
    check_books(engine)
    engine.run_dry()
    assert engine.computed == {"old": 9, "loose": 60, "tight": 1}
    assert engine.conductor.counts.given_up == 0


def test_where_nothing_runs_the_half_computed_give_up_for_it() -> None:
    engine = build_engine("edf", "stock", max_started=1)
    engine.step(ask("loose", 60, due_s=90.0))
    engine.step(ask("tight", 60, due_s=5.0))
    taken = leave_pages(engine, 0)
    assert engine.step() == ["tight"]
    assert engine.conductor.counts.given_up == 1
    engine.token_to_kv_pool_allocator.free(taken)
    engine.run_dry()
    check_books(engine)


def test_who_gave_up_has_its_pages_kept_and_asks_for_all_of_them() -> None:
    engine = build_engine("edf", "stock", max_started=1)
    store = add_store(engine)
    loose = ask("loose", 60, due_s=90.0)
    engine.step(loose)
    store.keep(loose)
    engine.step(ask("tight", 60, due_s=5.0))
    assert store.linker.wants.find("loose") is None
    taken = leave_pages(engine, 0)
    assert engine.step() == ["tight"]
    assert (engine.conductor.counts.given_up, store.linker.counts.spilled) == (1, 1)
    wanted = store.linker.wants.find("loose")
    assert wanted is not None
    # Also for those that the device has now: it may evict them.
    assert (wanted.first, wanted.want.asked_pages) == (0, 14)
    engine.token_to_kv_pool_allocator.free(taken)
    assert "loose" not in engine.step()
    store.deliver("loose", 14)
    assert "loose" in engine.step()
    engine.run_dry()
    check_books(engine)
    assert store.store.wants == {}
