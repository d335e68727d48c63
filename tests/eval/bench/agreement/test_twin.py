"""A twin answers as the side it stands for: known gaps are found again, known steps are served."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.eval.bench.agreement.twin import Gaps, Twin, fit_gaps, make_twin
from bana.eval.client.isolated import Isolated, TtftPoint
from bana.eval.requests import Ending, Limits, Offered, Prompt, Workload
from bana.eval.simulator.engine_spec import Overtaking, TokensSeen
from bana.slo.decisions import PolicyChoice
from bana.slo.steps import StepModel

# 10 ms a step and 1 ms a prompt token, 2 ms a decoding request.
MODEL = StepModel(0.010, 0.001, 0.0, 0.010, 0.002, 0.0)
FACTS = {
    "kv_tokens": 10_000.0,
    "page_tokens": 1.0,
    "chunk_tokens": 64.0,
    "max_running": 8.0,
    "can_mix": 0.0,
    "has_prefix_cache": 1.0,
    "is_seen_late": 1.0,
}
AT_ONCE = {**FACTS, "is_seen_late": 0.0}
LENGTHS = Isolated((TtftPoint(20, 0.0), TtftPoint(60, 0.0), TtftPoint(200, 0.0)), None, 3)
LIMITS = Limits(ttft_s=1.0, tpot_s=0.05)


def with_gaps(twin: Twin, gaps: Gaps) -> Twin:
    return msgspec.structs.replace(twin, gaps=gaps)


def offer(dues_s: Sequence[float], prompt: int = 50, output: int = 5) -> Workload:
    requests = tuple(
        Offered(
            index=index,
            due_s=due_s,
            prompt=Prompt(token_ids=[1_000 * index + place for place in range(prompt)]),
            prompt_tokens=prompt,
            output_tokens=output,
            limits=LIMITS,
        )
        for index, due_s in enumerate(dues_s)
    )
    return Workload(requests, max(dues_s) + 1.0, 0, "made up", {"warmup_s": 0.0})


def test_single_requests_take_what_their_steps_take() -> None:
    isolated = make_twin("budget", AT_ONCE, MODEL).measure_isolated(LENGTHS)
    # 200 tokens are four chunks of at most 64.
    assert [point.ttft_s for point in isolated.points] == pytest.approx([0.030, 0.070, 0.240])
    assert isolated.tpot_s == pytest.approx(0.012)
    late = make_twin("budget", FACTS, MODEL).measure_isolated(LENGTHS)
    # Seen with the decode step that follows.
    assert late.points[0].ttft_s == pytest.approx(0.042)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.0, 0.05), st.floats(0.0, 0.2))
def test_gaps_that_a_side_has_are_found_again(overhead_s: float, door_s: float) -> None:
    twin = make_twin("budget", AT_ONCE, MODEL)
    live = with_gaps(twin, Gaps(overhead_s, door_s)).measure_isolated(LENGTHS)
    found = fit_gaps(twin, live)
    assert found.overhead_s == pytest.approx(overhead_s, abs=1e-6)
    assert found.door_s == pytest.approx(door_s, abs=1e-6)


def test_a_side_faster_than_its_model_has_no_gaps() -> None:
    fast = Isolated((TtftPoint(20, 0.01),), 0.001, 1)
    assert fit_gaps(make_twin("fcfs", FACTS, MODEL), fast) == Gaps(0.0, 0.0)
    unseen = Isolated((TtftPoint(20, 0.05),), None, 1)
    assert fit_gaps(make_twin("fcfs", AT_ONCE, MODEL), unseen).overhead_s == 0.0


def test_a_door_delays_all_that_is_seen_and_nothing_else() -> None:
    twin = make_twin("budget", AT_ONCE, MODEL)
    workload = offer([0.0, 0.01, 5.0])
    plain, delayed = (
        side.serve(workload, 10.0).observed for side in (twin, with_gaps(twin, Gaps(0.0, 0.25)))
    )
    for one, other in zip(plain, delayed, strict=True):
        assert other.ending is Ending.FINISHED
        assert other.event_times_s == pytest.approx([at_s + 0.25 for at_s in one.event_times_s])
        assert (other.first_s, other.last_s) == (other.event_times_s[0], other.event_times_s[-1])
        assert other.end_s == other.last_s
        assert (other.due_s, other.sent_s) == (one.due_s, one.sent_s)


def test_a_door_can_cost_a_promise() -> None:
    twin = make_twin("budget", AT_ONCE, MODEL)
    workload = offer([0.0, 2.0])
    assert twin.take_point(workload, 10.0).attainment == 1.0
    far = with_gaps(twin, Gaps(0.0, 1.0)).take_point(workload, 10.0)
    assert (far.attainment, far.missed_ttft, far.missed_tpot) == (0.0, 2.0, 0.0)
    slow = with_gaps(twin, Gaps(0.05, 0.0)).take_point(workload, 10.0)
    assert (slow.attainment, slow.missed_ttft, slow.missed_tpot) == (0.0, 0.0, 2.0)


def test_a_slower_machine_takes_longer_for_everything() -> None:
    twin = with_gaps(make_twin("budget", AT_ONCE, MODEL), Gaps(0.001, 0.02))
    usual, slow = twin.measure_isolated(LENGTHS), twin.at_pace(1.5).measure_isolated(LENGTHS)
    assert usual.tpot_s is not None
    assert slow.tpot_s == pytest.approx(1.5 * usual.tpot_s)
    for one, other in zip(usual.points, slow.points, strict=True):
        assert other.ttft_s == pytest.approx(1.5 * one.ttft_s)
    assert twin.at_pace(1.0) == twin


def test_answers_that_never_come_are_missed_and_have_no_ttft() -> None:
    twin = with_gaps(make_twin("budget", FACTS, MODEL), Gaps(0.0, 0.1))
    point = twin.take_point(offer([0.0], prompt=5_000), 1.0)
    assert (point.unanswered, point.met, point.ttft_mean_s) == (1.0, 0.0, None)


def test_sides_are_simulated_by_the_policies_that_they_run() -> None:
    budget, stock = (make_twin(side, FACTS, MODEL) for side in ("budget", "fcfs"))
    assert (budget.policies.order, budget.policies.governor) == (
        PolicyChoice("budget"),
        PolicyChoice("tpot"),
    )
    assert budget.engine.overtaking is Overtaking.BETWEEN_CHUNKS
    assert (stock.policies.order, stock.policies.governor) == (
        PolicyChoice("fcfs"),
        PolicyChoice("prefill_first"),
    )
    assert stock.engine.overtaking is Overtaking.NEVER
    assert stock.engine.tokens_seen is TokensSeen.AFTER_NEXT
