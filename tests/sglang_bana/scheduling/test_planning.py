"""A pass of the queue: who comes first, what the step does, what is booked, and who is excused."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from bana.slo.governor import FixedChunk, FixedChunkOptions, StepKind, StepPlan, StepView
from bana.slo.order import ORDERS, OrderPlan, QueueView
from sglang_bana.engine.scheduling.conductor import REMEASURED_ROWS

from .asks import ask
from .books import check_books
from .fake_engine import CLOCK, SPEED, FakeEngine, build_engine, replace_policies


class Failing:
    """A policy that never answers."""

    def decide_order(self, view: QueueView, now_s: float, rng: Random) -> OrderPlan:
        raise RuntimeError("no idea")

    def decide_step(self, view: StepView) -> StepPlan:
        raise RuntimeError("no idea")


class Watching:
    """A governor that keeps what it was shown, and computes eight prompt tokens a step."""

    def __init__(self) -> None:
        self.views: list[StepView] = []

    def decide_step(self, view: StepView) -> StepPlan:
        self.views.append(view)
        return StepPlan(StepKind.PREFILL, 8, "watched")


def plan(engine: FakeEngine) -> None:
    engine.conductor.plan_pass(engine.running_batch)
    engine.conductor.apply_plan()


def queue_up(engine: FakeEngine, dues_s: dict[str, float], **more: Any) -> None:
    engine.process_input_requests([ask(rid, 8, due_s=due, **more) for rid, due in dues_s.items()])


@pytest.mark.parametrize(("device", "decodes"), [("cpu", 2), ("cuda", 1)])
def test_a_last_token_in_flight_holds_a_step_up_only_where_launches_compute(
    device: str, decodes: int
) -> None:
    engine, governor = build_engine("edf", is_overlapping=True), Watching()
    engine.device = device
    replace_policies(engine, governor=governor)
    engine.step(ask("short", 4, new_tokens=2), ask("long", 4, new_tokens=9))
    assert engine.step() == ["short", "long"]
    assert engine.step(ask("next", 8)) == ["next"]
    assert [view.decode_requests for view in governor.views] == [0, decodes]


def test_the_head_comes_first_and_the_rest_keeps_its_order() -> None:
    engine = build_engine("edf", "stock", head_rows=2)
    queue_up(engine, {"a": 6.0, "b": 5.0, "c": 2.0, "d": 4.0, "e": 1.0, "f": 3.0})
    plan(engine)
    assert engine.queue() == ["e", "c", "a", "b", "d", "f"]
    assert engine.conductor.counts.passes == 1


def test_the_order_is_that_in_which_requests_are_admitted() -> None:
    engine = build_engine("edf", "stock", chunk_tokens=8)
    queue_up(engine, {"a": 3.0, "b": 1.0, "c": 2.0})
    assert [engine.step() for _ in range(3)] == [["b"], ["c"], ["a"]]


def test_a_pass_without_inputs_or_work_or_room_is_left_to_sglang() -> None:
    engine = build_engine("edf", "stock")
    conductor, batch = engine.conductor, engine.running_batch
    engine.waiting_queue.append(ask("early", 8))
    assert conductor.plan_pass(batch) is None
    engine.waiting_queue.clear()
    engine.step()
    queue_up(engine, {"a": 1.0})
    batch.reqs, batch.batch_is_full = [ask("running", 8)], True
    assert conductor.plan_pass(batch) is None
    assert (conductor.plan, conductor.counts.passes) == (None, 0)
    batch.batch_is_full = False
    conductor.plan_pass(batch)
    assert conductor.counts.passes == 1


@pytest.mark.parametrize("is_hybrid_swa", [False, True])
def test_a_batch_that_sglang_takes_for_open_is_planned(is_hybrid_swa: bool) -> None:
    engine = build_engine("edf", "stock")
    engine.step(ask("loose", 60, due_s=90.0))
    engine.step(ask("tight", 13, due_s=5.0, new_tokens=8 if is_hybrid_swa else 1))
    assert engine.conductor.effects.count_started() == 1
    engine.refusals = iter([is_hybrid_swa])
    engine.is_hybrid_swa = is_hybrid_swa
    # With a window SGLang tries a full batch again, and an empty one it does not believe full.
    if is_hybrid_swa:
        assert engine.step() == ["tight"]
    else:
        engine.last_batch = None
    engine.running_batch.batch_is_full = True
    passes = engine.conductor.counts.passes
    assert engine.step() == ["loose"]
    check_books(engine)
    counts = engine.conductor.counts
    assert (counts.passes, counts.resumes) == (passes + 1, 1)
    assert engine.conductor.effects.count_started() == 0


def test_a_decode_step_before_prompts_is_counted_and_admits_nobody() -> None:
    engine = build_engine("edf", "tpot")
    assert engine.step(ask("a", 8)) == ["a"]
    assert engine.step(ask("b", 8)) == ["a"]
    assert engine.conductor.plan is None
    assert engine.step() == ["b"]
    counts = engine.conductor.counts
    assert (counts.passes, counts.deferrals) == (3, 1)


def test_the_governor_sees_the_engine_as_it_is() -> None:
    engine, governor = build_engine(), Watching()
    replace_policies(engine, governor=governor)
    engine.step(ask("old", 8, new_tokens=50, tpot_s=0.5))
    engine.step()
    engine.step()
    engine.step(ask("long", 30), ask("short", 5))
    engine.step()
    first, second, third = governor.views
    assert (first.decode_requests, first.tightest_tpot_s, first.context_tokens) == (0, None, 0)
    assert (second.decode_requests, second.tightest_tpot_s) == (1, 0.5)
    assert (second.context_tokens, second.decodes_since_prefill) == (8 + 3, 2)
    assert (second.prefill_tokens, second.prefix_tokens) == (32 + 8, 0)
    assert (third.prefill_tokens, third.prefix_tokens) == (24 + 8, 8)
    assert third.decodes_since_prefill == 0
    assert (third.max_chunk_tokens, third.page_tokens, third.can_mix) == (16, 4, False)
    # Three tokens are out, two of them after a decode step of 11 ms, and one gap is lent.
    assert first.spare_s is None
    assert second.spare_s == pytest.approx(3 * 0.5 - 2 * 0.011 + 0.5)


@pytest.mark.parametrize("is_overlapping", [False, True])
def test_who_decodes_has_begun_by_the_time_that_all_ranks_share(is_overlapping: bool) -> None:
    engine = build_engine(is_overlapping=is_overlapping)
    one = ask("one", 8, new_tokens=9)
    engine.step(one)
    told_s = [engine.conductor.learner.inputs(0.0).now_s]
    while one.bana.begun_s is None:
        told_s.append(CLOCK.now_s)
        engine.step()
    assert one.bana.begun_s == told_s[-1]
    begun_s = one.bana.begun_s
    engine.run_dry()
    assert one.bana.begun_s == begun_s


def test_a_step_takes_what_the_governor_gives_and_the_setting_stays() -> None:
    engine = build_engine()
    replace_policies(engine, governor=FixedChunk(FixedChunkOptions(chunk_tokens=8)))
    engine.step(ask("a", 30))
    assert engine.computed["a"] == 8
    assert engine.chunked_prefill_size == 16


def test_a_mixed_step_carries_the_decodes_beside_a_full_portion() -> None:
    engine = build_engine(is_mixing=True)
    fixed = FixedChunk(FixedChunkOptions(chunk_tokens=8, decodes=0))
    replace_policies(engine, governor=fixed)
    engine.step(ask("old", 4, new_tokens=20))
    assert engine.step(ask("new", 30)) == ["new", "old"]
    assert engine.computed["new"] == 8
    assert (engine.is_mixed_chunk, engine.chunked_prefill_size) == (True, 16)
    check_books(engine)


def test_prompts_alone_are_not_mixed_where_the_governor_says_so() -> None:
    engine = build_engine(is_mixing=True)
    replace_policies(engine, governor=Watching())
    engine.step(ask("old", 4, new_tokens=20))
    assert engine.step(ask("new", 30)) == ["new"]
    assert engine.is_mixed_chunk


def test_an_order_that_fails_is_excused_and_arrivals_decide() -> None:
    engine = build_engine()
    conductor = replace_policies(engine, order=Failing())
    queue_up(engine, {"a": 3.0, "b": 2.0, "c": 1.0})
    engine.waiting_queue.reverse()
    plan(engine)
    assert engine.queue() == ["a", "b", "c"]
    assert conductor.counts.faults == 1
    engine.run_dry()
    assert conductor.counts.faults == conductor.counts.passes


def test_a_governor_that_fails_leaves_the_step_to_sglang() -> None:
    engine = build_engine()
    conductor = replace_policies(engine, governor=Failing())
    engine.step(ask("a", 30))
    assert (engine.computed["a"], conductor.counts.faults) == (16, 1)


def test_a_demotion_is_booked_once() -> None:
    engine = build_engine("budget", "stock")
    queue_up(engine, {"lost": 0.001})
    for _ in range(2):
        plan(engine)
    queue_up(engine, {"lost too": 0.001}, slo_class="batch")
    plan(engine)
    assert engine.conductor.counts.demotions == 2
    books = engine.conductor.outcomes.report()
    assert (books["standard"].demoted, books["batch"].demoted) == (1, 1)


def test_whose_prefix_is_cached_by_now_is_not_demoted() -> None:
    engine = build_engine("budget", "stock")
    prompts = 2 * REMEASURED_ROWS
    dues_s = {f"r{i}": 0.001 for i in range(prompts)}
    queue_up(engine, dues_s)
    for req in engine.waiting_queue:
        # As if more of it was to be computed when it arrived.
        engine.conductor.room.measure(req.bana.slot, 80, 0)
    plan(engine)
    assert engine.conductor.counts.demotions == prompts - REMEASURED_ROWS


def test_the_first_of_a_fresh_engine_is_judged_by_its_budget() -> None:
    engine = build_engine("budget", "stock")
    service_s = SPEED.estimate_prefill_s(8, 0, 16)
    queue_up(engine, {"just": 2.0 * service_s, "not": 1.99 * service_s})
    plan(engine)
    assert engine.conductor.counts.demotions == 1


@pytest.mark.parametrize("governor", ["tpot", "prefill_first", "stock"])
@pytest.mark.parametrize("order", ORDERS.names())
def test_everybody_is_answered_under_every_policy(order: str, governor: str) -> None:
    engine = build_engine(order, governor)
    asked = [ask(f"r{i}", 5 + 7 * i, due_s=0.5 + (5 * i) % 7) for i in range(8)]
    for req in asked:
        engine.step(req)
        check_books(engine)
    engine.run_dry()
    assert [len(req.output_ids) for req in asked] == [4] * 8
    assert engine.conductor.counts.faults == 0
