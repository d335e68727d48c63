"""What bana's scheduler leaves to SGLang, and what it puts in its place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.schedule_policy import (
    AddReqResult,
    PrefillAdder,
    SchedulePolicy,
    _PrefillAdmission,
)
from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer

from bana.slo.admission import AdmissionDecision, Verdict
from bana.slo.governor import FixedChunk, FixedChunkOptions
from bana.slo.order import ORDERS
from sglang_bana.engine.scheduler import ConductedPolicy, OneChunkAdder, describe_refusal
from sglang_bana.engine.scheduling.outcome_streamer import OutcomeStreamer

from .asks import ask, make_req
from .fake_engine import CLOCK, SPEED, START_S, FakeScheduler, build_engine, replace_policies

WHOLE = _PrefillAdmission(0, 8, 4, False, 0)
PART = _PrefillAdmission(0, 8, 0, True, 0)


@pytest.mark.parametrize("is_overlapping", [False, True])
def test_without_policies_an_engine_decides_as_sglang_does(is_overlapping: bool) -> None:
    ours = build_engine("stock", "stock", pages=30, is_overlapping=is_overlapping)
    stock = FakeScheduler(ours.setup, None)
    assert ours.conductor is None
    for index in range(12):
        ran = [e.step(ask(f"r{index}", 9 + 7 * index, new_tokens=6)) for e in (ours, stock)]
        assert ran[0] == ran[1]
    for engine in (ours, stock):
        engine.run_dry()
    assert ours.computed == stock.computed
    assert type(stock.policy) is type(ours.policy)
    assert ours.get_prefill_adder_class() is stock.get_prefill_adder_class()
    assert ours.get_output_streamer_class() is stock.get_output_streamer_class()
    assert ours.flush_cache()


@pytest.mark.parametrize(
    ("admission", "has_chunked", "expected"),
    [
        (PART, True, AddReqResult.OTHER),
        (PART, False, PART),
        (WHOLE, True, WHOLE),
        (AddReqResult.NO_TOKEN, True, AddReqResult.NO_TOKEN),
    ],
)
def test_a_second_chunked_prompt_is_not_begun(
    admission: Any, has_chunked: bool, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrefillAdder, "_select_prefill_admission", lambda *_, **__: admission)
    adder = OneChunkAdder.__new__(OneChunkAdder)
    got = adder._select_prefill_admission(ask("a", 8), has_chunked_req=has_chunked)
    assert got is expected


def test_sglang_is_asked_for_an_order_only_where_none_was_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = build_engine("edf", "stock")
    asked: list[Any] = []
    monkeypatch.setattr(
        SchedulePolicy, "calc_priority", lambda self, queue, *_, **__: asked.append(queue)
    )
    assert isinstance(engine.policy, ConductedPolicy)
    engine.policy.calc_priority([1])
    engine.conductor.plan = SimpleNamespace(order=None)
    engine.policy.calc_priority([2])
    touched: list[Any] = []
    monkeypatch.setattr(
        SchedulePolicy, "_touch_waiting_prefixes", lambda self, _, queue: touched.append(queue)
    )
    engine.conductor.plan = SimpleNamespace(order=object())
    engine.policy.calc_priority([3])
    assert asked == [[1], [2]]
    # What those who wait will use stays cached, as after SGLang's own order.
    assert touched == [[3]]


@pytest.mark.parametrize(("is_chunking", "is_left"), [(True, True), (False, False)])
def test_without_a_prefix_cache_no_second_chunked_prompt_is_begun_either(
    is_chunking: bool, is_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(
        PrefillAdder, "add_one_req_ignore_eos", lambda self, req: taken.append(req.rid)
    )
    adder = OneChunkAdder.__new__(OneChunkAdder)
    adder._is_chunking, adder.rem_chunk_tokens = is_chunking, 8
    for rid, tokens in (("fits", 8), ("long", 9)):
        req = ask(rid, tokens)
        req.init_next_round_input()
        answer = adder.add_one_req_ignore_eos(req)
        assert (answer is AddReqResult.OTHER) == (is_left and rid == "long")
    assert taken == (["fits"] if is_left else ["fits", "long"])


def test_a_flush_that_is_denied_takes_no_progress() -> None:
    engine = build_engine("edf", "stock")
    engine.step(ask("loose", 60, due_s=90.0))
    engine.step(ask("tight", 60, due_s=5.0))
    assert engine.conductor.effects.count_started() == 1
    assert not engine.flush_cache()
    assert engine.conductor.counts.given_up == 0
    engine.run_dry()


def test_other_threads_hear_of_whole_chunks_while_a_pass_lends_a_smaller_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = build_engine(chunk_tokens=64)
    fixed = FixedChunk(FixedChunkOptions(chunk_tokens=8))
    conductor = replace_policies(engine, order=ORDERS.create("edf"), governor=fixed)
    heard: list[tuple[int, Any]] = []
    admit = FakeScheduler._get_new_batch_prefill_raw

    def spy(self: Any, *args: Any) -> Any:
        heard.append((self.chunked_prefill_size, conductor.engine_prices.chunk_tokens))
        return admit(self, *args)

    monkeypatch.setattr(FakeScheduler, "_get_new_batch_prefill_raw", spy)
    engine.step(ask("a", 30))
    assert heard == [(8, 64)]


@pytest.mark.parametrize("reports", [False, True])
def test_clients_are_told_of_their_budget_only_where_that_is_asked_for(reports: bool) -> None:
    engine = build_engine(report_outcome=reports)
    expected = OutcomeStreamer if reports else SchedulerOutputStreamer
    assert engine.get_output_streamer_class() is expected


def test_a_flush_is_sglangs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def flush(self: FakeScheduler, empty_cache: bool) -> bool:
        asked.append(empty_cache)
        return False

    monkeypatch.setattr(FakeScheduler, "flush_cache", flush)
    assert build_engine().flush_cache(empty_cache=False) is False
    assert asked == [False]


def test_each_pass_decides_with_what_was_measured_before_it() -> None:
    engine = build_engine()
    engine.process_input_requests([])
    CLOCK.now_s += 5.0
    engine.process_input_requests([make_req("a", [1], 1, None)])
    assert engine.waiting_queue[0].bana.budget.arrival_s == START_S + 5.0


def test_steps_are_learned_from() -> None:
    engine = build_engine()
    engine.step(ask("a", 8))
    engine.step()
    state = engine.conductor.learner.estimator.state
    assert {kind: seen.observations for kind, seen in state.errors.items()} == {
        "prefill": 1,
        "decode": 1,
        "mixed": 0,
    }


def test_an_answer_is_booked_with_the_slack_of_its_admission() -> None:
    engine = build_engine("edf", "stock")
    engine.step(ask("a", 40, due_s=5.0))
    engine.run_dry()
    report = engine.conductor.outcomes.report()["standard"]
    assert (report.answered, report.met, sum(report.slack.counts)) == (1, 1, 1)
    # Later chunks are no admission.
    assert report.slack.sum_s == pytest.approx(5.0 - SPEED.estimate_prefill_s(40, 0, 16))
    assert report.ttft.sum_s == pytest.approx(SPEED.estimate_prefill_s(40, 0, 16))


def test_an_engine_that_runs_dry_is_not_loaded_any_more() -> None:
    engine = build_engine()
    engine.conductor.learner.tracker.observe_chunk(wall_s=3.0, alone_s=1.0)
    assert engine.conductor.learner.tracker.inflation == 3.0
    engine.step()
    assert engine.conductor.learner.tracker.inflation == 1.0


@pytest.mark.parametrize(("retry_after_s", "told"), [(2.5, "2.500 s"), (None, "1.000 s")])
def test_a_refusal_says_when_to_come_again(retry_after_s: float | None, told: str) -> None:
    decided = AdmissionDecision(Verdict.REJECTED_INFEASIBLE, "infeasible", retry_after_s)
    message = describe_refusal(decided)
    assert message.startswith("rejected_infeasible: ")
    assert f"retry after {told}" in message
    assert "(infeasible)" in message
