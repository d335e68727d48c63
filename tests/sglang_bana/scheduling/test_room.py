"""When nobody is admitted: who goes first then, who gives up its pages, and that it ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.slo.inflation import LoadTracker
from sglang_bana.engine.scheduling import conductor as conductor_module

from .asks import ask
from .books import check_books
from .fake_engine import FakeEngine, build_engine

LOST_S = 0.001


def build_full(order: str, **more: Any) -> FakeEngine:
    """An engine in which `old` runs, and whose other 40 tokens of KV are not enough for most."""
    engine = build_engine(order, "stock", pages=16, **more)
    assert engine.step(ask("old", 4, new_tokens=20)) == ["old"]
    return engine


def hold_two_half_computed() -> tuple[FakeEngine, list[int]]:
    """`tight` and `loose` wait half computed; so much KV is taken that neither fits."""
    engine = build_engine("edf", "stock", pages=30)
    for req in (ask("loose", 60, due_s=90.0), ask("tight", 60, due_s=50.0)):
        assert [engine.step(req), engine.step()] == [[req.rid]] * 2
    engine.step(ask("tightest", 16, due_s=1.0, new_tokens=1))
    assert engine.conductor.effects.count_started() == 2
    return engine, engine.token_to_kv_pool_allocator.alloc(9)


def test_a_lost_leader_without_room_holds_nobody_up() -> None:
    engine = build_full("budget")
    lost = ask("lost", 48, due_s=LOST_S)
    assert engine.step(lost, ask("on time", 4)) == ["on time"]
    assert engine.queue() == ["lost"]
    engine.run_dry()
    assert len(lost.output_ids) == 4


def test_a_leader_is_passed_over_once_a_pass() -> None:
    engine = build_full("budget")
    engine.process_input_requests(
        [ask("lost", 48, due_s=LOST_S), ask("a", 48), ask("b", 4, due_s=200.0)]
    )
    conductor, batch = engine.conductor, engine.running_batch
    conductor.plan_pass(batch)
    conductor.apply_plan()
    assert engine.queue() == ["lost", "a", "b"]
    batch.batch_is_full = True
    assert conductor.make_room(batch)
    assert (engine.queue(), batch.batch_is_full) == (["a", "b", "lost"], False)
    assert not conductor.make_room(batch)
    assert engine.queue() == ["a", "b", "lost"]


def test_a_leader_is_not_passed_over_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conductor_module, "MOST_PASSED_OVER", 2)
    engine = build_full("budget")
    engine.process_input_requests([ask("lost", 48, due_s=LOST_S), ask("on time", 48)])
    conductor, batch = engine.conductor, engine.running_batch
    tries = []
    for _ in range(4):
        # As when a page was freed that is enough for another one alone.
        batch.batch_is_full = False
        conductor.plan_pass(batch)
        conductor.apply_plan()
        assert engine.queue()[0] == "lost"
        tries.append(conductor.make_room(batch))
    # From then on those behind wait with it, until there is room.
    assert tries == [True, True, False, False]
    engine.run_dry()
    assert engine.computed == {"old": 4, "lost": 48, "on time": 48}


def test_a_lost_request_that_is_alone_has_nobody_to_let_pass() -> None:
    engine = build_full("budget")
    engine.process_input_requests([ask("lost", 48, due_s=LOST_S)])
    engine.conductor.plan_pass(engine.running_batch)
    assert not engine.conductor.make_room(engine.running_batch)


def test_a_leader_on_time_is_waited_for() -> None:
    engine = build_full("edf")
    assert engine.step(ask("first", 48, due_s=5.0), ask("second", 4)) == ["old"]
    assert engine.queue() == ["first", "second"]


def test_a_lost_leader_that_began_is_not_passed_over() -> None:
    engine = build_engine("budget", "stock", pages=30)
    engine.step(ask("begun", 60, due_s=LOST_S))
    assert engine.step(ask("on time", 40)) == ["on time"]
    # Its share is as good as new.
    engine.conductor.learner.tracker = LoadTracker()
    engine.process_input_requests([ask("second", 40)])
    engine.running_batch.reqs = [ask("running", 4)]
    engine.conductor.plan_pass(engine.running_batch)
    plan = engine.conductor.plan
    assert plan is not None
    assert plan.passed_over is engine.waiting_queue[0]
    assert not engine.conductor.make_room(engine.running_batch)
    assert engine.queue() == ["begun", "second"]


def test_who_began_goes_on_where_the_head_does_not_fit() -> None:
    engine = build_engine("edf", "stock", pages=30)
    engine.step(ask("begun", 60, due_s=90.0))
    assert engine.step(ask("head", 100, due_s=5.0)) == ["begun"]
    assert engine.queue() == ["head"]
    check_books(engine)
    engine.run_dry()
    assert engine.computed == {"begun": 60, "head": 100}


def test_the_loosest_gives_up_where_nothing_will_free_a_page() -> None:
    engine, taken = hold_two_half_computed()
    loose = next(req for req in engine.waiting_queue if req.rid == "loose")
    assert engine.step() == ["tight"]
    assert (engine.conductor.counts.given_up, loose.bana.lock) == (1, None)
    assert engine.conductor.effects.count_started() == 0
    engine.token_to_kv_pool_allocator.free(taken)
    check_books(engine)
    engine.run_dry()
    assert engine.computed["tight"] == 60


def test_nobody_gives_up_while_something_runs() -> None:
    engine, _ = hold_two_half_computed()
    engine.running_batch.reqs = [ask("running", 8)]
    engine.conductor.plan_pass(engine.running_batch)
    assert not engine.conductor.make_room(engine.running_batch)
    assert engine.conductor.counts.given_up == 0


def test_a_chunked_prompt_without_room_has_the_others_give_up() -> None:
    engine, _ = hold_two_half_computed()
    engine.chunked_req = engine.waiting_queue.pop()
    engine.conductor.effects.forget(engine.chunked_req)
    engine.conductor.plan_pass(engine.running_batch)
    assert engine.conductor.make_room(engine.running_batch)
    assert engine.conductor.counts.given_up == 1
    assert not engine.conductor.make_room(engine.running_batch)


def test_without_half_computed_prompts_one_try_is_enough() -> None:
    engine = build_engine("edf", "stock")
    engine.refusals = iter([True])
    assert engine.step(ask("a", 8)) == []
    assert engine.tries == 1


ARRIVALS = st.lists(
    st.tuples(st.integers(1, 70), st.sampled_from([LOST_S, 0.2, 1.0, 30.0]), st.integers(1, 9)),
    max_size=3,
)


@pytest.mark.parametrize("is_overlapping", [False, True])
@settings(max_examples=25, deadline=None)
@given(
    turns=st.lists(st.tuples(ARRIVALS, st.lists(st.booleans(), max_size=6)), max_size=12),
    order=st.sampled_from(["budget", "edf", "sjf"]),
    most=st.integers(0, 3),
)
def test_whoever_is_refused_and_however_often_a_pass_ends(
    is_overlapping: bool, turns: list[tuple[Any, list[bool]]], order: str, most: int
) -> None:
    engine = build_engine(
        order, pages=24, max_started=most, head_rows=2, is_overlapping=is_overlapping
    )
    asked = []
    for arrivals, refusals in turns:
        arrived = [
            ask(f"r{len(asked) + i}", tokens, due_s=due_s, new_tokens=new)
            for i, (tokens, due_s, new) in enumerate(arrivals)
        ]
        asked += arrived
        engine.refusals, engine.tries = iter(refusals), 0
        engine.step(*arrived)
        assert engine.tries <= 3 + most + 1
        check_books(engine)
    engine.refusals = iter(())
    engine.run_dry()
    check_books(engine)
    assert [len(r.output_ids) for r in asked] == [r.sampling_params.max_new_tokens for r in asked]
    assert engine.tree_cache.locks == []
