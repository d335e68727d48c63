"""What an engine learns from its steps: how long they take, and how much else runs between."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from bana.slo.steps import StepShape, count_attended
from sglang_bana.engine.scheduling.step_learner import USUAL_CONTEXT_TOKENS, StepLearner

from .fake_engine import CLOCK, SPEED

CHUNK_TOKENS = 100
CHUNK_S = SPEED.estimate_step_s(StepShape(CHUNK_TOKENS, count_attended(CHUNK_TOKENS, 0)))


def scheduler_of(**more: Any) -> Any:
    settings = {
        "device": "cpu",
        "waiting_queue": ["somebody"],
        "chunked_req": None,
        "chunked_prefill_size": CHUNK_TOKENS,
        "max_prefill_tokens": 4096,
        "max_total_num_tokens": 100_000,
        "max_running_requests": 20,
    }
    return SimpleNamespace(**settings | more)


def prompts(tokens: int = CHUNK_TOKENS) -> Any:
    return SimpleNamespace(
        forward_mode=ForwardMode.EXTEND,
        reqs=[SimpleNamespace(seqlen=tokens)],
        extend_lens=[tokens],
        prefix_lens=[0],
        decoding_reqs=None,
    )


def decodes(*lengths: int) -> Any:
    reqs = [SimpleNamespace(seqlen=length) for length in lengths]
    return SimpleNamespace(forward_mode=ForwardMode.DECODE, reqs=reqs)


def run(learner: StepLearner, batch: Any, seconds_s: float) -> None:
    with learner.timing(batch):
        CLOCK.now_s += seconds_s
    learner.note_result()


def test_the_model_follows_what_is_measured() -> None:
    learner = StepLearner(scheduler_of())
    for _ in range(40):
        run(learner, prompts(), 0.5)
    chunk = StepShape(CHUNK_TOKENS, count_attended(CHUNK_TOKENS, 0))
    assert learner.inputs(0.0).model.estimate_step_s(chunk) == pytest.approx(0.5, rel=0.05)


def test_a_result_without_a_launch_teaches_nothing() -> None:
    learner = StepLearner(scheduler_of(), SPEED)
    learner.note_result()
    assert learner.estimator.model == SPEED


@pytest.mark.parametrize("waits", ["queue", "chunk"])
def test_a_chunk_lasts_until_the_next_while_somebody_waits(waits: str) -> None:
    more = {"waiting_queue": []} | {"chunked_req": object()} if waits == "chunk" else {}
    learner = StepLearner(scheduler_of(**more), SPEED)
    run(learner, prompts(), CHUNK_S)
    run(learner, decodes(8), CHUNK_S)
    run(learner, decodes(8), CHUNK_S)
    assert learner.tracker.inflation == 1.0
    run(learner, prompts(), CHUNK_S)
    assert learner.tracker.inflation == pytest.approx(3.0, rel=0.02)


def test_decodes_while_nobody_waits_are_no_load() -> None:
    learner = StepLearner(scheduler_of(waiting_queue=[]), SPEED)
    run(learner, prompts(), CHUNK_S)
    run(learner, decodes(8), CHUNK_S)
    run(learner, prompts(), CHUNK_S)
    assert learner.tracker.inflation == pytest.approx(1.0, rel=0.02)


def test_an_idle_engine_forgets_the_chunk_it_was_at() -> None:
    learner = StepLearner(scheduler_of(), SPEED)
    run(learner, prompts(), CHUNK_S)
    run(learner, decodes(8), 3 * CHUNK_S)
    learner.note_idle()
    run(learner, prompts(), CHUNK_S)
    assert learner.tracker.inflation == 1.0
    run(learner, prompts(), CHUNK_S)
    assert learner.tracker.inflation == pytest.approx(1.0, rel=0.02)


def test_a_full_engine_is_one_whose_pool_is_nearly_used_up() -> None:
    learner = StepLearner(scheduler_of(max_running_requests=10**6), SPEED)
    full = int(0.9 * 100_000) // USUAL_CONTEXT_TOKENS
    beside_s = SPEED.estimate_step_s(StepShape(0, 0.0, full, full * USUAL_CONTEXT_TOKENS))
    load = learner.inputs(0.0).load
    assert load.full_inflation == pytest.approx(1 + beside_s / CHUNK_S)
    run(learner, decodes(300, 100), 0.01)
    beside_s = learner.estimator.model.estimate_step_s(StepShape(0, 0.0, 450, 90_000))
    load = learner.inputs(0.0).load
    assert load.full_inflation == pytest.approx(1 + beside_s / CHUNK_S)


def test_a_full_engine_runs_no_more_than_it_may() -> None:
    learner = StepLearner(scheduler_of(max_running_requests=3), SPEED)
    beside_s = SPEED.estimate_step_s(StepShape(0, 0.0, 3, 3 * USUAL_CONTEXT_TOKENS))
    assert learner.inputs(0.0).load.full_inflation == pytest.approx(1 + beside_s / CHUNK_S)


def test_an_engine_without_chunks_is_judged_by_its_longest_step() -> None:
    learner = StepLearner(scheduler_of(chunked_prefill_size=None, max_prefill_tokens=50), SPEED)
    beside_s = SPEED.estimate_step_s(StepShape(0, 0.0, 20, 20 * USUAL_CONTEXT_TOKENS))
    chunk_s = SPEED.estimate_step_s(StepShape(50, count_attended(50, 0)))
    assert learner.inputs(0.0).load.full_inflation == pytest.approx(1 + beside_s / chunk_s)


def test_inputs_hold_the_time_the_model_and_the_share() -> None:
    learner = StepLearner(scheduler_of(), SPEED)
    learner.note_portion(30, 0)
    learner.note_portion(10, 10)
    inputs = learner.inputs(12.5)
    assert (inputs.now_s, inputs.model, inputs.load.demoted_share) == (12.5, SPEED, 0.25)


def test_on_a_device_a_step_lasts_until_its_result() -> None:
    learner = StepLearner(scheduler_of(device="cuda"), SPEED)
    with learner.timing(prompts()):
        CLOCK.now_s += 0.001
    CLOCK.now_s += 3 * CHUNK_S
    learner.note_result()
    assert learner.estimator.state.errors["prefill"].bias > 0.5
