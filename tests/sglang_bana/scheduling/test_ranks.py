"""Ranks of one engine decide alike: from what rank 0 measured, never from what they see alone."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from sglang.srt.managers.io_struct import AbortReq

from bana.slo.order import EngineLoad
from bana.slo.steps import StepModel
from sglang_bana.engine.scheduler import REFRESH_S
from sglang_bana.engine.scheduling.passes import PassInputs
from sglang_bana.engine.scheduling.step_learner import StepLearner

from .asks import ask, make_req
from .books import check_books
from .fake_engine import CLOCK, START_S, FakeEngine, build_engine

# Rank 1's clock is another one, and so is what it has measured.
CLOCKS_S = (START_S, 5.0)
SLOW = StepModel(0.3, 0.02, 0.0, 0.2, 0.01, 0.0)


class Ranks:
    """Two ranks, each with its own requests, clock and learner."""

    def __init__(self, **settings: Any) -> None:
        self.ranks = [build_engine(tp_size=2, **settings) for _ in CLOCKS_S]
        self.ranks[1].conductor.learner = StepLearner(self.ranks[1], SLOW)
        self._now_s = list(CLOCKS_S)

    @property
    def now_s(self) -> float:
        """The time of rank 0, which is that of the front door."""
        return self._now_s[0]

    def step(self, rng: Random, received: list[list[Any]]) -> list[list[str]]:
        """One turn of both; who ran on each. What rank 0 tells comes first on both."""
        CLOCK.now_s = self._now_s[0]
        told = self.ranks[0]._poll_timeout_aborts()
        ran = []
        for rank, engine in enumerate(self.ranks):
            CLOCK.now_s = self._now_s[rank] + rng.random() * rank
            ran.append(engine.turn([*told, *received[rank]]))
            self._now_s[rank] = CLOCK.now_s
        return ran

    def views(self) -> Iterator[Any]:
        """What must be equal on both."""
        for engine in self.ranks:
            conductor = engine.conductor
            plan = conductor.plan
            yield (
                None if plan is None else (plan.order, plan.step, plan.slots.tolist()),
                engine.queue(),
                None if engine.chunked_req is None else engine.chunked_req.rid,
                [req.rid for req in conductor.effects.list_started()],
                conductor.counts,
            )


def draw_arrivals(rng: Random, now_s: float, known: list[str]) -> list[list[Any]]:
    """Up to three requests, and sometimes an abort: for each rank its own objects."""
    drawn: list[list[Any]] = [[], []]
    for _ in range(rng.choice((0, 0, 1, 1, 3))):
        words: dict[str, Any] = {
            "due_s": rng.choice((0.05, 0.3, 2.0, 30.0)),
            "at_s": now_s,
            "new_tokens": rng.choice((1, 3, 12)),
            "tpot_s": rng.choice((0.03, 0.5)),
            "shared_tokens": rng.choice((0, 12)),
        }
        known.append(f"{len(known):03d}")
        tokens = rng.choice((3, 20, 60, 90))
        for requests in drawn:
            requests.append(ask(known[-1], tokens, **words))
    if known and rng.random() < 0.1:
        rid = rng.choice(known)
        for requests in drawn:
            requests.append(AbortReq(rid=rid))
    return drawn


@pytest.mark.parametrize("seed", range(6))
def test_ranks_decide_alike_whatever_they_measure(seed: int) -> None:
    rng = Random(seed)
    ranks = Ranks(
        order=("budget", "cascade", "sjf")[seed % 3],
        governor="tpot",
        pages=40,
        is_overlapping=seed % 2 == 0,
        max_started=2,
    )
    known: list[str] = []
    for turn in range(120):
        received = draw_arrivals(rng, ranks.now_s, known) if turn < 60 else [[], []]
        first, second = ranks.step(rng, received)
        assert first == second
        left, right = ranks.views()
        assert left == right
    for engine in ranks.ranks:
        check_books(engine)
    counts = ranks.ranks[0].conductor.counts
    assert counts.yields > 0
    assert counts.passes > 60


def tell(engine: FakeEngine) -> list[Any]:
    return [told for told in engine._poll_timeout_aborts() if isinstance(told, PassInputs)]


def test_rank_0_tells_its_time_while_there_is_work_and_now_and_then() -> None:
    engine = build_engine(tp_size=2)
    assert [told.now_s for told in tell(engine)] == [START_S]
    assert tell(engine) == []
    CLOCK.now_s += 0.5 * REFRESH_S
    assert tell(engine) == []
    CLOCK.now_s += REFRESH_S
    assert len(tell(engine)) == 1
    engine.waiting_queue.append(ask("a", 4))
    assert len(tell(engine)) == 1


def test_a_single_rank_tells_nobody() -> None:
    engine = build_engine()
    engine.waiting_queue.append(ask("a", 4))
    assert tell(engine) == []


def test_what_rank_0_told_is_no_request() -> None:
    engine = build_engine(tp_size=2)
    inputs = PassInputs(7.0, SLOW, EngineLoad())
    engine.process_input_requests([inputs])
    assert engine.waiting_queue == []
    engine.process_input_requests([make_req("a", [1, 2], 4, None)])
    assert engine.waiting_queue[0].bana.budget.arrival_s == 7.0
