"""Any load on an engine with a store: pages that come, do not come, or fail change no answer."""

from __future__ import annotations

from random import Random
from typing import Any

import hypothesis.strategies as st
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sglang.srt.managers.io_struct import AbortReq
from sglang.srt.managers.schedule_batch import Req

from bana.slo.fetching import RestoreView
from bana.slo.restore import RESTORES, RestorePlan, RestoreReason

from .asks import ask
from .books import check_books
from .fake_engine import CLOCK, START_S, FakeEngine, build_engine
from .store_stand import EngineStore, add_store

SETUPS = st.fixed_dictionaries(
    {
        "order": st.sampled_from(["stock", "budget", "edf"]),
        "governor": st.sampled_from(["stock", "tpot"]),
        "pages": st.sampled_from([20, 32]),
        "rows": st.sampled_from([2, 8]),
        "chunk_tokens": st.sampled_from([12, 16, 64]),
        "max_started": st.integers(0, 2),
        "is_overlapping": st.booleans(),
        "is_mixing": st.booleans(),
    }
)


class SometimesMeets:
    """The planner, which now and then has the first pages computed instead of waiting for them."""

    asks = True

    def decide_restore(self, view: RestoreView, now_s: float, rng: Random) -> RestorePlan:
        lacking = len(view.known or b"") - view.arrived_pages
        if view.can_meet and lacking > 1 and not view.is_settled and rng.random() < 0.5:
            page = view.arrived_pages + rng.randint(1, lacking - 1)
            return RestorePlan(view.arrived_pages, now_s, RestoreReason.MEET, page)
        return RESTORES.create("planned", {"most_s": 2.0}).decide_restore(view, now_s, rng)


class StoreLoad(RuleBasedStateMachine):
    """Arrivals, pages, failures, losses, aborts and turns in any order; then it runs dry."""

    engine: FakeEngine
    store: EngineStore

    @initialize(setup=SETUPS, meets=st.booleans())
    def start(self, setup: dict[str, Any], meets: bool) -> None:
        CLOCK.now_s = START_S
        self.engine = build_engine(**setup)
        self.store = add_store(self.engine)
        if meets:
            self.store.restorer.desk._policy = SometimesMeets()
        self.asked: list[Req] = []
        self.left: set[str] = set()

    @rule(
        size=st.floats(0, 1),
        due_s=st.sampled_from([0.01, 0.5, 50.0]),
        shared=st.sampled_from([0, 9, 30]),
        kept=st.integers(0, 12),
        does_fail=st.booleans(),
    )
    def arrive(self, size: float, due_s: float, shared: int, kept: int, does_fail: bool) -> None:
        longest = self.engine.max_total_num_tokens - 2 * self.engine.page_size - 6
        rid = f"{len(self.asked):03d}"
        tokens = max(1, int(size * longest))
        req = ask(rid, tokens, at_s=CLOCK.now_s, new_tokens=4, due_s=due_s, shared_tokens=shared)
        req.sampling_params.ignore_eos = False
        self.store.keep(req, kept)
        self.asked.append(req)
        if does_fail:
            self.engine.failing.add(rid)
        self.engine.process_input_requests([req])

    @rule(turns=st.integers(1, 6))
    def turn(self, turns: int) -> None:
        for _ in range(turns):
            self.engine.step()

    @precondition(lambda self: self.asked)
    @rule(place=st.floats(0, 1, exclude_max=True), pages=st.integers(1, 9))
    def deliver(self, place: float, pages: int) -> None:
        self.store.deliver(self.asked[int(place * len(self.asked))].rid, pages)

    @precondition(lambda self: self.asked)
    @rule(place=st.floats(0, 1, exclude_max=True))
    def abort(self, place: float) -> None:
        rid = self.asked[int(place * len(self.asked))].rid
        self.left.add(rid)
        self.engine.process_input_requests([AbortReq(rid=rid)])

    @rule()
    def lose(self) -> None:
        self.store.store.lose()
        self.store.store.come_back()

    @rule()
    def wait(self) -> None:
        CLOCK.now_s += 0.3

    @invariant()
    def is_sound(self) -> None:
        if not hasattr(self, "engine"):
            return
        if self.engine.conductor is not None:
            check_books(self.engine)
        waiting = {req.rid for req in self.engine.waiting_queue}
        wanting = {rid for rid in self.asked_rids() if self.store.linker.wants.find(rid)}
        parted = set(self.store.linker.wants._tails)
        assert len(self.store.linker.wants) == len(wanting) + len(parted)
        assert wanting <= waiting
        assert not parted & {req.rid for req in self.asked if req.finished()}
        assert len(self.store.restorer.holds) <= len(wanting)
        assert self.engine.held_out == self.engine._held_late == ()

    def asked_rids(self) -> list[str]:
        return [req.rid for req in self.asked]

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        engine = self.engine
        # Holds end by the clock, which stands in an engine that does nothing.
        for _ in range(400):
            engine.step()
            CLOCK.now_s += 0.05
        engine.run_dry()
        assert engine.tree_cache.locks == []
        assert self.store.store.wants == {}
        assert self.store.linker.counts.faults == 0
        for req in self.asked:
            if req.rid not in self.left:
                assert len(req.output_ids) == req.sampling_params.max_new_tokens
                assert not req.is_retracted


class TestStoreLoad(StoreLoad.TestCase):
    """Run by pytest."""

    settings = settings(
        max_examples=40,
        stateful_step_count=20,
        deadline=None,
        phases=set(Phase) - {Phase.shrink},
    )
