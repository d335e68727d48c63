"""Ranks pass over a request together, and go on with it together."""

from __future__ import annotations

import threading
from typing import Any

from sglang_bana.engine.linker.holding import HoldsEnded

from .asks import ask
from .fake_engine import CLOCK, FakeEngine, build_engine
from .store_stand import EngineStore, add_store


def build(order: str = "edf", **more: Any) -> tuple[FakeEngine, EngineStore]:
    engine = build_engine(order, "stock", **more)
    return engine, add_store(engine)


def hold_on_both() -> list[tuple[FakeEngine, EngineStore]]:
    """Two ranks that hold "a", of which the store has all pages and has brought none."""
    ranks = [build("stock", tp_size=2) for _ in range(2)]
    for engine, store in ranks:
        req = ask("a", 12)
        store.keep(req)
        engine.turn([req])
        assert engine.queue() == ["a"]
    return ranks


def test_ranks_hold_and_release_together() -> None:
    engines = hold_on_both()
    # Pages have arrived on the second rank alone: nobody goes on.
    engines[1][1].deliver("a", 9)
    told = engines[0][0]._poll_timeout_aborts()
    assert told == []
    assert [engine.turn([*told]) for engine, _ in engines] == [[], []]
    engines[0][1].deliver("a", 9)
    told = engines[0][0]._poll_timeout_aborts()
    assert told == [HoldsEnded(("a",), (2,))]
    assert [engine.turn([*told]) for engine, _ in engines] == [["a"], ["a"]]


def test_a_rank_is_given_a_moment_for_what_another_one_has() -> None:
    engines = hold_on_both()
    engines[0][1].deliver("a", 9)
    told = engines[0][0]._poll_timeout_aborts()
    late, store = engines[1]
    timer = threading.Timer(0.01, store.deliver, ("a", 9))
    timer.start()
    assert late.turn([*told]) == ["a"]
    timer.join()
    wanted = late.restorer.linker.wants.find("a")
    # It was admitted with all of it, and wants nothing more.
    assert wanted is None
    assert store.linker.counts.faults == 0


def test_a_rank_whose_pages_do_not_come_goes_on_without_them() -> None:
    engines = hold_on_both()
    engines[0][1].deliver("a", 9)
    told = engines[0][0]._poll_timeout_aborts()
    assert engines[1][0].turn([*told]) == ["a"]


def test_one_rank_tells_nobody() -> None:
    engine, store = build()
    req = ask("a", 12)
    store.keep(req)
    engine.step(req)
    CLOCK.now_s += 9.0
    assert engine._poll_timeout_aborts() == []
