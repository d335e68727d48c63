"""Who enters the queue, who is refused and how they are told, and that leaving leaves nothing."""

from __future__ import annotations

import gc
import re
import weakref
from http import HTTPStatus
from typing import Any

import pytest
from sglang.srt.managers.io_struct import AbortReq

from bana.slo.admission import ArrivalView, Verdict

from .asks import ask, make_req
from .books import check_books
from .fake_engine import BOOT_ID, CLOCK, SPEED, FakeEngine, build_engine, replace_policies
from .store_stand import add_store

GOOD = {
    "bana_slo_class": "standard",
    "bana_ttft_s": 5.0,
    "bana_tpot_s": 0.1,
    "bana_arrival_s": 1000.0,
    "bana_deadline_s": 1005.0,
    "bana_boot_id": BOOT_ID,
}


def test_a_request_keeps_the_budget_that_its_front_door_gave_it() -> None:
    engine = build_engine()
    engine.process_input_requests([make_req("a", [1, 2, 3], 4, GOOD)])
    (req,) = engine.waiting_queue
    budget = req.bana.budget
    assert (budget.arrival_s, budget.ttft_s, budget.tpot_s) == (1000.0, 5.0, 0.1)


@pytest.mark.parametrize("words", [None, {}, {"theirs": 1}, "text", [1]])
def test_who_says_nothing_is_promised_the_default_from_now_on(words: Any) -> None:
    engine = build_engine()
    CLOCK.now_s = 1234.5
    engine.process_input_requests([make_req("a", [1, 2, 3], 4, words)])
    (req,) = engine.waiting_queue
    assert req.bana.budget.arrival_s == 1234.5
    assert req.bana.budget.slo_class == "standard"


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"bana_ttft_s": -1.0}, "bana_ttft_s"),
        ({"bana_ttft_s": "soon"}, "bana_ttft_s"),
        ({"bana_tpot_s": float("nan")}, "bana_tpot_s"),
        ({"bana_arrival_s": 1e9, "bana_deadline_s": 1e9 + 5}, "arrival_s"),
        ({"bana_deadline_s": 1.0}, "deadline_s"),
        ({"bana_boot_id": "another"}, "boot_id"),
        ({"bana_priority": 1}, "bana_priority"),
    ],
)
def test_a_bad_promise_is_refused_with_400_and_the_reason(
    changed: dict[str, Any], what: str
) -> None:
    engine = build_engine()
    engine.process_input_requests([make_req("bad", [1, 2, 3], 4, GOOD | changed)])
    engine.process_input_requests([make_req("good", [1, 2, 3], 4, GOOD)])
    (told,) = engine.aborted
    assert (told.rid, told.finished_reason["status_code"]) == ("bad", HTTPStatus.BAD_REQUEST)
    assert told.finished_reason["type"] == "abort"
    assert what in told.finished_reason["message"]
    assert engine.queue() == ["good"]
    engine.run_dry()
    check_books(engine)


def test_a_refused_request_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = build_engine()
    finished: list[str] = []
    monkeypatch.setattr(engine.tree_cache, "finish", lambda handle, _: finished.append(handle.rid))
    engine.process_input_requests([make_req("bad", [1], 4, GOOD | {"bana_ttft_s": -1.0})])
    assert finished == ["bad"]


def test_who_cannot_be_answered_in_time_is_told_429_and_when() -> None:
    engine = build_engine("edf", "stock", admission="reject_infeasible")
    engine.process_input_requests([ask(f"r{i}", 100, due_s=0.4) for i in range(4)])
    assert engine.queue() == ["r0", "r1"]
    assert {told.finished_reason["status_code"] for told in engine.aborted} == {
        HTTPStatus.TOO_MANY_REQUESTS
    }
    message = engine.aborted[0].finished_reason["message"]
    found = re.search(r"^rejected_infeasible: .*retry after (\d+\.\d{3}) s", message)
    assert found is not None
    assert float(found[1]) > 0
    assert engine.conductor.counts.rejections == 2
    assert engine.conductor.outcomes.report()["standard"].rejected == 2
    engine.run_dry()
    check_books(engine)


class Watching:
    """An admission that keeps what it was shown."""

    def __init__(self) -> None:
        self.views: list[ArrivalView] = []

    def decide_admission(self, view: ArrivalView, now_s: float) -> Any:
        self.views.append(view)
        raise RuntimeError("no idea")


def test_an_arrival_is_judged_by_the_work_before_it() -> None:
    engine, watching = build_engine(), Watching()
    conductor = replace_policies(engine, admission=watching)
    for rid, tokens, due_s in (("a", 20, 50.0), ("b", 40, 90.0), ("c", 12, 60.0)):
        engine.process_input_requests([ask(rid, tokens, due_s=due_s)])
    a, b, c = watching.views
    alone_s = [SPEED.estimate_prefill_s(tokens, 0, 16) for tokens in (20, 40, 12)]
    assert [view.service_s for view in (a, b, c)] == pytest.approx(alone_s)
    # c is due before b, which is no work before it.
    assert [view.ahead_s for view in (a, b, c)] == pytest.approx([0.0, alone_s[0], alone_s[0]])
    # A policy that fails refuses nobody.
    assert engine.queue() == ["a", "b", "c"]
    assert (conductor.counts.faults, conductor.counts.rejections) == (3, 0)


def test_what_others_compute_or_bring_is_no_work_before_an_arrival() -> None:
    engine, watching = build_engine("edf", "stock"), Watching()
    store = add_store(engine)
    replace_policies(engine, admission=watching)
    kept = ask("kept", 60, due_s=40.0)
    store.keep(kept)
    engine.process_input_requests([kept, ask("given", 60, due_s=50.0, handoff="decode")])
    assert engine.queue() == ["kept", "given"]
    engine.process_input_requests([ask("plain", 20, due_s=60.0)])
    kept_view, given, plain = watching.views
    assert kept_view.service_s > 0.0 == given.service_s
    assert (given.ahead_s, plain.ahead_s) == (0.0, 0.0)


def test_the_prompt_that_is_being_computed_is_work_before_an_arrival() -> None:
    engine, watching = build_engine("edf", "stock"), Watching()
    replace_policies(engine, admission=watching)
    engine.step(ask("long", 100, due_s=50.0))
    assert engine.chunked_req is not None
    engine.process_input_requests([ask("later", 20, due_s=60.0), ask("sooner", 20, due_s=10.0)])
    left = SPEED.estimate_prefill_s(100 - 16, 16, 16)
    _, later, sooner = watching.views
    assert (later.ahead_s, sooner.ahead_s) == (pytest.approx(left), 0.0)


def test_who_takes_in_everybody_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = build_engine("edf")
    monkeypatch.setattr(engine.conductor.room, "view", None)
    engine.process_input_requests([ask("a", 20)])
    assert engine.queue() == ["a"]


def test_the_given_up_are_no_work_before_an_arrival() -> None:
    engine, watching = build_engine(), Watching()
    conductor = replace_policies(engine, admission=watching)
    engine.process_input_requests([ask("lost", 20, due_s=0.001)])
    conductor.room.demote(conductor.room.find(engine.waiting_queue))
    engine.process_input_requests([ask("a", 20)])
    assert watching.views[-1].ahead_s == 0.0


def test_before_the_first_inputs_everybody_is_admitted() -> None:
    engine = build_engine(admission="reject_infeasible")
    req = make_req("a", [*range(4000)], 4, None)
    engine.conductor.welcome(req)
    assert engine.conductor.decide_admission(req).verdict is Verdict.ADMITTED


def test_a_retracted_request_has_begun() -> None:
    engine = build_engine("budget", "stock")
    back = ask("back", 8, due_s=0.001)
    engine.process_input_requests([back])
    back.output_ids.append(9)
    engine.waiting_queue.clear()
    engine._add_request_to_queue(back, is_retracted=True)
    engine.conductor.plan_pass(engine.running_batch)
    engine.conductor.apply_plan()
    counts = engine.conductor.counts
    assert (counts.retractions, counts.demotions) == (1, 0)
    plan = engine.conductor.plan
    assert plan is not None
    assert plan.order is not None
    assert plan.order.reasons == ("deadline",)


def test_a_retracted_request_is_not_refused() -> None:
    engine = build_engine("budget", "stock", admission="reject_infeasible")
    back = ask("back", 8, due_s=0.5)
    engine.process_input_requests([back])
    engine.waiting_queue.clear()
    CLOCK.now_s += 100.0
    engine.process_input_requests([])
    engine._add_request_to_queue(back, is_retracted=True)
    assert engine.queue() == ["back"]


def fill() -> FakeEngine:
    """`done` runs, `half` waits half computed, `chunked` is being computed, `fresh` waits."""
    engine = build_engine("edf", "stock")
    engine.step(ask("done", 4, new_tokens=50))
    engine.step(ask("half", 60, due_s=90.0))
    engine.step(ask("chunked", 60, due_s=80.0))
    engine.step(ask("fresh", 60, due_s=99.0))
    assert engine.queue() == ["half", "fresh"]
    return engine


@pytest.mark.parametrize("rid", ["done", "half", "chunked", "fresh", ""])
def test_an_abort_leaves_nothing_behind(rid: str) -> None:
    engine = fill()
    engine.step(AbortReq(rid=rid, abort_all=not rid))
    check_books(engine)
    engine.run_dry()
    check_books(engine)
    gone = {"half", "chunked", "fresh"} if not rid else {rid} - {"done"}
    assert {told.rid for told in engine.aborted} == gone
    assert engine.tree_cache.locks == []
    assert engine.req_to_token_pool.taken == {}
    pool = engine.token_to_kv_pool_allocator
    assert pool.available_size() + engine.tree_cache.evictable_size() == pool.size
    assert engine.conductor.effects.count_started() == 0


def test_nothing_refers_to_who_has_left() -> None:
    engine = fill()
    assert engine.chunked_req is not None
    left = [weakref.ref(req) for req in (*engine.waiting_queue, engine.chunked_req)]
    engine.step(AbortReq(rid="", abort_all=True))
    engine.run_dry()
    engine.step(ask("next", 8))
    engine.run_dry()
    gc.collect()
    assert [ref() for ref in left] == [None] * 3


@pytest.mark.parametrize("is_overlapping", [False, True])
def test_everything_is_given_back_when_all_have_been_answered(is_overlapping: bool) -> None:
    engine = build_engine("edf", is_overlapping=is_overlapping)
    for index in range(6):
        engine.step(ask(f"r{index}", 30 + index, due_s=60.0 - index))
    engine.run_dry()
    check_books(engine)
    pool = engine.token_to_kv_pool_allocator
    assert pool.available_size() + engine.tree_cache.evictable_size() == pool.size
    assert (engine.tree_cache.locks, engine.req_to_token_pool.taken) == ([], {})


def test_a_flush_takes_what_waits_half_computed_with_it() -> None:
    engine = build_engine("edf", "stock")
    engine.step(ask("loose", 60, due_s=90.0))
    engine.step(ask("tight", 40, due_s=5.0, new_tokens=1))
    assert engine.conductor.effects.count_started() == 1
    engine.process_input_requests([AbortReq(rid="tight")])
    engine.process_pending_chunked_abort()
    # As before new weights: whoever waits may go on waiting.
    engine._engine_paused, engine.last_batch = True, None
    assert engine.flush_cache()
    assert engine.tree_cache.locks == []
    assert engine.conductor.counts.given_up == 1
    engine.run_dry()
    assert engine.computed["loose"] == 16 + 60
