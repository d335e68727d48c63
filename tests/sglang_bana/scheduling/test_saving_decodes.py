"""Decoding requests that run out of KV: half-computed prompts give way before they do."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from .asks import ask
from .books import check_books
from .fake_engine import FakeEngine, FakeScheduler, build_engine


def hold_three() -> FakeEngine:
    """`a` and `b` wait half computed, `c` is being computed; the tightest is `c`."""
    engine = build_engine("edf", "stock")
    for rid, due_s in (("a", 90.0), ("b", 80.0), ("c", 70.0)):
        engine.step(ask(rid, 60, due_s=due_s))
    # What the loop does before it decides.
    engine.stash_chunked_request(engine.chunked_req)
    return engine


def check_until(engine: FakeEngine, checks: int) -> tuple[list[list[str]], Callable[[], bool]]:
    """A check of the KV that holds at the last of `checks`, and who was half computed at each."""
    seen: list[list[str]] = []

    def check() -> bool:
        chunked = [] if engine.chunked_req is None else [engine.chunked_req]
        seen.append([r.rid for r in [*chunked, *engine.conductor.effects.list_started()]])
        return len(seen) == checks

    return seen, check


def save(engine: FakeEngine, check: Callable[[], bool]) -> None:
    engine.conductor.save_decodes(SimpleNamespace(check_decode_mem=check))


def test_the_loosest_gives_up_first_and_the_chunked_one_last() -> None:
    engine = hold_three()
    seen, check = check_until(engine, 9)
    save(engine, check)
    assert seen == [["c", "b", "a"], ["c", "b"], ["c"]]
    assert (engine.chunked_req, engine.conductor.counts.given_up) == (None, 3)
    assert sorted(engine.queue()) == ["a", "b", "c"]
    assert engine.tree_cache.locks == []
    assert not engine.req_to_token_pool.taken
    engine.run_dry()
    check_books(engine)


def test_no_more_give_up_than_have_to() -> None:
    engine = hold_three()
    seen, check = check_until(engine, 2)
    save(engine, check)
    assert seen == [["c", "b", "a"], ["c", "b"]]
    assert engine.conductor.effects.count_started() == 1
    assert engine.chunked_req is not None


def test_a_prompt_that_cannot_be_separated_stays() -> None:
    engine = hold_three()
    engine.chunked_req.return_logprob = True
    _, check = check_until(engine, 9)
    save(engine, check)
    assert engine.chunked_req is not None
    assert engine.conductor.counts.given_up == 2


def test_who_gave_up_is_fresh_again() -> None:
    engine = hold_three()
    _, check = check_until(engine, 9)
    save(engine, check)
    conductor = engine.conductor
    conductor.note_inputs(conductor.learner.inputs(0.0))
    conductor.plan_pass(engine.running_batch)
    assert conductor.plan is not None
    slots = conductor.plan.slots
    rows = conductor.room.view(slots, conductor.learner.estimator.model, 16)
    assert rows.started.tolist() == [False] * 3


def test_one_whose_answer_had_begun_is_never_demoted() -> None:
    engine = build_engine("budget", "stock")
    begun = ask("begun", 60, due_s=0.001)
    begun.output_ids.append(7)
    engine.step(begun)
    engine.stash_chunked_request(begun)
    engine.conductor.save_decodes(SimpleNamespace(check_decode_mem=lambda: False))
    assert engine.conductor.counts.given_up == 1
    engine.run_dry()
    assert engine.conductor.counts.demotions == 0


def test_answers_that_are_ending_give_their_kv_before_prompts_give_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = hold_three()
    monkeypatch.setattr(
        FakeScheduler, "update_running_batch", lambda _, batch: batch, raising=False
    )
    ending = [ask("ending", 4)]
    monkeypatch.setattr(engine, "_reqs_finishing_inflight", lambda _: ending)
    short = SimpleNamespace(check_decode_mem=lambda: False)
    engine.update_running_batch(short)
    assert engine.conductor.counts.given_up == 0
    ending.clear()
    engine.update_running_batch(short)
    assert engine.conductor.counts.given_up == 3


def decode_beside_a_chunk(**more: Any) -> FakeEngine:
    """`old` decodes, `loose` is being computed, and no page is left."""
    engine = build_engine("edf", pages=32, **more)
    engine.step(ask("old", 8, new_tokens=30))
    while engine.chunked_req is None:
        engine.step(*([] if engine.waiting_queue else [ask("loose", 60)]))
    return engine


def test_decodes_go_on_where_a_prompt_gave_way() -> None:
    engine = decode_beside_a_chunk()
    pool = engine.token_to_kv_pool_allocator
    taken = pool.alloc(len(pool.free_numbers))
    while engine.conductor.counts.given_up == 0:
        assert engine.step() == ["old"]
    assert (engine.queue(), engine.conductor.counts.retractions) == (["loose"], 0)
    pool.free(taken)
    check_books(engine)
    engine.run_dry()
    assert engine.conductor.counts.retractions == 0


def test_a_retracted_request_is_counted_and_comes_back() -> None:
    engine = build_engine("edf", pages=20)
    asked = [ask("a", 24, new_tokens=40), ask("b", 12, new_tokens=30)]
    for req in asked:
        req.sampling_params.ignore_eos = False
    # Nothing is kept free for what they decode.
    engine.new_token_ratio_tracker.current = 0.0
    engine.step(*asked)
    engine.run_dry()
    assert engine.conductor.counts.retractions > 0
    assert [len(req.output_ids) for req in asked] == [40, 30]
    check_books(engine)
