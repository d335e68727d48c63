"""A prompt's first pages are computed while those behind them are fetched, and both meet."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from sglang.srt.managers.io_struct import AbortReq

from bana.slo.fetching import RestoreView
from bana.slo.restore_plan import RestorePlan, RestoreReason
from sglang_bana.engine.linker.holding import HoldsEnded

from .asks import ask
from .books import check_books
from .fake_engine import FakeEngine, build_engine
from .store_stand import EngineStore, add_store

# Of 60 tokens, 14 pages of 4 can be restored: 7 are computed, 7 fetched.
PROMPT, PAGE, MEET = 60, 4, 7


class MeetOnce:
    """Meets at a page where it may, and waits for all that comes afterwards."""

    asks = True

    def __init__(self) -> None:
        self.views: list[RestoreView] = []

    def decide_restore(self, view: RestoreView, now_s: float, rng: Random) -> RestorePlan:
        self.views.append(view)
        known = len(view.known or b"")
        if view.can_meet and known == PROMPT // PAGE - 1:
            return RestorePlan(view.arrived_pages, now_s, RestoreReason.MEET, MEET)
        if view.arrived_pages < known and not view.is_settled:
            return RestorePlan(known, now_s + 1.0, RestoreReason.FETCH)
        return RestorePlan(view.arrived_pages, now_s, RestoreReason.COMPLETE)


def build(order: str = "edf", governor: str = "tpot", **more: Any) -> tuple[FakeEngine, Any]:
    engine = build_engine(order, governor, **{"chunk_tokens": 64, **more})
    store = add_store(engine)
    store.restorer.desk._policy = MeetOnce()
    return engine, store


def begin(engine: FakeEngine, store: EngineStore, **more: Any) -> Any:
    """A request whose first part is being computed."""
    req = ask("a", PROMPT, **more)
    store.keep(req)
    assert engine.step(req) == ["a"]
    assert engine.computed == {"a": MEET * PAGE}
    return req


@pytest.mark.parametrize("is_overlapping", [False, True])
def test_computing_stops_where_fetching_began(is_overlapping: bool) -> None:
    engine, store = build(is_overlapping=is_overlapping)
    begin(engine, store)
    # What was asked for first is given up but for what has come of it.
    assert len(store.linker.wants) == 1
    assert engine.step() == []
    assert engine.queue() == ["a"]
    wanted = store.linker.wants.find("a")
    assert (wanted.first, wanted.want.asked_pages) == (MEET, MEET)
    check_books(engine)
    store.deliver("a", MEET)
    assert engine.step() == ["a"]
    engine.run_dry()
    assert (store.linker.counts.parted, store.linker.counts.met) == (1, 1)
    assert store.linker.counts.faults == 0
    assert store.store.wants == {}
    check_books(engine)


def test_it_may_take_several_chunks_to_get_there() -> None:
    engine, store = build(chunk_tokens=16)
    req = ask("a", PROMPT)
    store.keep(req)
    assert engine.step(req) == ["a"]
    assert engine.step() == ["a"]
    assert engine.computed == {"a": MEET * PAGE}
    assert engine.step() == []
    assert store.linker.counts.met == 1


def test_others_go_on_while_it_waits_at_the_meeting() -> None:
    engine, store = build()
    begin(engine, store)
    assert engine.step(ask("b", 12)) == ["b"]
    assert engine.queue() == ["a"]
    check_books(engine)
    store.deliver("a", MEET)
    engine.run_dry()
    assert engine.computed["b"] == 12
    assert store.store.wants == {}


def test_it_keeps_its_seat_where_another_is_seated_while_it_meets() -> None:
    engine, store = build()
    req = begin(engine, store)
    engine.process_input_requests([ask("b", 12)])
    engine.stash_chunked_request(engine.chunked_req)
    engine.conductor.apply_plan()
    assert engine.queue() == ["b"]
    engine.conductor.room._free.clear()
    engine.conductor.welcome(ask("c", 12))
    slots = engine.conductor.room.find([req])
    assert slots.tolist() == [req.bana.slot]


def test_what_has_come_by_then_is_not_waited_for() -> None:
    engine, store = build()
    begin(engine, store)
    (tail,) = store.linker.wants._tails.values()
    store.store.deliver(tail.want, MEET)
    # All ranks hold it until the first one has looked.
    assert [engine.step(), engine.step()] == [[], ["a"]]
    engine.run_dry()
    assert store.linker.counts.met == 1


@pytest.mark.parametrize("steps", [0, 1])
def test_an_abort_ends_everything(steps: int) -> None:
    engine, store = build()
    begin(engine, store)
    for _ in range(steps):
        engine.step()
    engine.step(AbortReq(rid="a"))
    engine.run_dry()
    assert engine.queue() == []
    assert store.store.wants == {}
    assert len(store.linker.wants) == len(store.restorer.holds) == 0
    check_books(engine)


def test_who_cannot_leave_its_seat_is_computed_to_the_end() -> None:
    engine, store = build()
    req = begin(engine, store)
    req.return_logprob = True
    engine.run_dry()
    assert engine.computed["a"] == PROMPT
    assert (store.linker.counts.parted, store.linker.counts.met) == (1, 0)
    assert store.store.wants == {}
    # One that could not have left does not part in the first place.
    req = ask("c", PROMPT)
    req.return_logprob = True
    store.keep(req)
    views = store.restorer.desk._policy.views
    del views[:]
    engine.step(req)
    assert not any(view.can_meet for view in views)


def test_steps_that_sglang_sizes_meet_nothing() -> None:
    engine, store = build("edf", "stock")
    req = ask("a", PROMPT)
    store.keep(req)
    assert engine.step(req) == []
    assert not any(view.can_meet for view in store.restorer.desk._policy.views)


def test_a_store_that_is_lost_holds_nobody_at_the_meeting() -> None:
    engine, store = build()
    begin(engine, store)
    store.store.lose()
    engine.run_dry()
    assert engine.computed["a"] == PROMPT
    check_books(engine)


def test_new_weights_end_what_was_to_be_met() -> None:
    engine, store = build()
    begin(engine, store)
    store.restorer.change_weights(is_idle=False)
    assert len(store.linker.wants) == 0
    engine.run_dry()
    assert engine.computed["a"] == PROMPT


def test_a_held_half_of_a_prompt_loses_its_pages_where_nobody_else_could_run() -> None:
    engine, store = build(pages=20)
    begin(engine, store)
    assert engine.step() == []
    # The other one needs what the half holds.
    engine.step(ask("b", PROMPT))
    engine.step()
    assert engine.conductor.counts.given_up == 1
    check_books(engine)
    while engine.waiting_queue or engine.chunked_req is not None:
        engine.step()
        store.deliver("a", 20)
    engine.run_dry()
    assert engine.computed["b"] == PROMPT
    assert store.store.wants == {}


def test_ranks_part_and_meet_together() -> None:
    engines = [build("stock", tp_size=2) for _ in range(2)]
    # Budgets begin by rank 0's clock.
    told = engines[0][0]._poll_timeout_aborts()
    for engine, store in engines:
        req = ask("a", PROMPT)
        store.keep(req)
        engine.turn([*told, req])
    told = engines[0][0]._poll_timeout_aborts()
    ended = next(message for message in told if isinstance(message, HoldsEnded))
    assert (ended.rids, ended.meet_pages) == (("a",), (MEET,))
    assert [engine.turn([*told]) for engine, _ in engines] == [["a"], ["a"]]
    assert [engine.computed["a"] for engine, _ in engines] == [MEET * PAGE] * 2
    told = engines[0][0]._poll_timeout_aborts()
    assert [engine.turn([*told]) for engine, _ in engines] == [[], []]
    assert [store.linker.wants.find("a").first for _, store in engines] == [MEET, MEET]
