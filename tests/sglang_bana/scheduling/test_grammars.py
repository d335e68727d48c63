"""Requests whose grammar is compiled before they wait: planned like all others, due since they
came.
"""

from __future__ import annotations

from typing import Any

import pytest

from bana.slo.governor import FixedChunk, FixedChunkOptions
from bana.slo.order import ORDERS

from .asks import ask, make_req
from .fake_engine import CLOCK, START_S, FakeEngine, build_engine, replace_policies


class Grammars:
    """SGLang's queue of requests whose grammars are being compiled, and how often it was polled."""

    def __init__(self) -> None:
        self.grammar_queue: list[Any] = []
        self.ready: list[Any] = []
        self.polls = 0

    def has_waiting_grammars(self) -> bool:
        return bool(self.grammar_queue)

    def get_ready_grammar_requests(self) -> list[Any]:
        self.polls += 1
        ready, self.ready = self.ready, []
        self.grammar_queue = [req for req in self.grammar_queue if req not in ready]
        return ready

    def abort_requests(self, _: Any) -> None: ...


@pytest.fixture
def engine() -> FakeEngine:
    engine = build_engine(chunk_tokens=64)
    engine.grammar_manager = Grammars()
    fixed = FixedChunk(FixedChunkOptions(chunk_tokens=8))
    replace_policies(engine, order=ORDERS.create("edf"), governor=fixed)
    return engine


def test_one_that_has_just_been_compiled_is_computed_in_the_governors_chunks(
    engine: FakeEngine,
) -> None:
    engine.step(ask("old", 8, new_tokens=60))
    engine.step()
    compiled = ask("compiled", 60)
    engine.grammar_manager.grammar_queue = engine.grammar_manager.ready = [compiled]
    while not engine.computed["compiled"]:
        engine.step()
    assert engine.computed["compiled"] == 8


def test_two_that_are_compiled_together_run_by_their_deadlines(engine: FakeEngine) -> None:
    pair = [ask("loose", 8, due_s=90.0), ask("tight", 8, due_s=1.0)]
    engine.grammar_manager.grammar_queue = engine.grammar_manager.ready = pair
    assert engine.step() == ["tight"]


def test_a_pass_asks_once_and_what_is_not_ready_stays(engine: FakeEngine) -> None:
    waiting = ask("compiling", 8)
    engine.grammar_manager.grammar_queue = [waiting]
    engine.refusals = iter([True, True])
    engine.step(ask("a", 8))
    assert engine.grammar_manager.polls == 1
    assert engine.grammar_manager.grammar_queue == [waiting]


def test_a_promise_counts_from_when_the_request_came(engine: FakeEngine) -> None:
    req = make_req("compiling", list(range(8)), 4, None)
    engine.grammar_manager.grammar_queue = [req]
    engine.step()
    CLOCK.now_s += 5.0
    engine.grammar_manager.ready = [req]
    engine.step()
    assert req.bana.budget.arrival_s == pytest.approx(START_S, abs=0.01)
