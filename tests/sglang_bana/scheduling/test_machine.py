"""Any load on any engine: nobody is lost, run twice or left waiting, and KV is never overdrawn."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sglang.srt.managers.io_struct import AbortReq
from sglang.srt.managers.schedule_batch import Req

from bana.slo.governor import GOVERNORS
from bana.slo.order import ORDERS

from .asks import ask
from .books import check_books
from .fake_engine import CLOCK, START_S, FakeEngine, build_engine

SETUPS = st.fixed_dictionaries(
    {
        "order": st.sampled_from(["budget", *ORDERS.names()]),
        "governor": st.sampled_from([*GOVERNORS.names(), "stock"]),
        "pages": st.sampled_from([20, 32]),
        "rows": st.sampled_from([2, 8]),
        "chunk_tokens": st.sampled_from([4, 12, 16, 32]),
        "max_started": st.integers(0, 3),
        "head_rows": st.sampled_from([1, 2, 64]),
        "is_overlapping": st.booleans(),
        "is_mixing": st.booleans(),
    }
)
WORDS = st.fixed_dictionaries(
    {
        "due_s": st.sampled_from([0.001, 0.1, 0.5, 3.0, 50.0]),
        "tpot_s": st.sampled_from([0.015, 0.05, 1.0]),
        "shared_tokens": st.sampled_from([0, 9, 30]),
    }
)


class Load(RuleBasedStateMachine):
    """Arrivals, aborts and turns of one engine in any order; then it is left to run dry."""

    engine: FakeEngine

    @initialize(setup=SETUPS, ratio=st.sampled_from([0.05, 0.7]))
    def start(self, setup: dict[str, Any], ratio: float) -> None:
        CLOCK.now_s = START_S
        self.engine = build_engine(**setup)
        # How much of what may be decoded SGLang keeps free for it.
        self.engine.new_token_ratio_tracker.current = ratio
        self.asked: list[Req] = []
        self.left: set[str] = set()

    @rule(
        size=st.floats(0, 1),
        new_tokens=st.sampled_from([1, 3, 12, 30]),
        words=WORDS,
        copies=st.integers(1, 3),
    )
    def arrive(self, size: float, new_tokens: int, words: dict[str, Any], copies: int) -> None:
        longest = self.engine.max_total_num_tokens - 2 * self.engine.page_size - new_tokens - 1
        tokens = max(1, int(size * longest))
        for _ in range(copies):
            rid = f"{len(self.asked):03d}"
            req = ask(rid, tokens, at_s=CLOCK.now_s, new_tokens=new_tokens, **words)
            req.sampling_params.ignore_eos = False
            self.asked.append(req)
            self.engine.process_input_requests([req])

    @rule(turns=st.integers(1, 8))
    def turn(self, turns: int) -> None:
        for _ in range(turns):
            self.engine.step()

    @precondition(lambda self: self.asked)
    @rule(place=st.floats(0, 1, exclude_max=True))
    def abort(self, place: float) -> None:
        rid = self.asked[int(place * len(self.asked))].rid
        self.left.add(rid)
        self.engine.process_input_requests([AbortReq(rid=rid)])

    @invariant()
    def is_sound(self) -> None:
        if not hasattr(self, "engine"):
            return
        engine = self.engine
        check_books(engine)
        half_done = engine.conductor.effects.count_started() + (engine.chunked_req is not None)
        assert half_done <= engine.setup.scheduling.max_started + 1

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        engine = self.engine
        engine.run_dry()
        check_books(engine)
        assert engine.tree_cache.locks == []
        assert engine.conductor.counts.faults == 0
        counts = engine.conductor.counts
        # Who yields loses no more than the page it has begun.
        lost = engine.page_size * counts.yields
        for req in self.asked:
            if req.rid not in self.left:
                assert len(req.output_ids) == req.sampling_params.max_new_tokens
            if not counts.given_up + counts.retractions:
                assert engine.computed[req.rid] <= len(req.origin_input_ids) + lost


class TestLoad(Load.TestCase):
    """Run by pytest."""

    # Shrinking such a load takes minutes, and what it prints can be replayed as it is.
    settings = settings(
        max_examples=40,
        stateful_step_count=20,
        deadline=None,
        phases=set(Phase) - {Phase.shrink},
    )
