"""Latency budgets where a request is special, or KV is short: the answers are those of stock."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sglang_bana.config import EngineConfig, SchedulerKind, SchedulingConfig

from .asks import NEW_TOKENS, Ask, body_of, is_empty, prompt_of, scheduling_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

ARGUMENTS = ("--chunked-prefill-size", "128", "--max-total-tokens", "1024")
# Three of these fill the pool, and the loosest comes first.
LOOSE = tuple(Ask(tokens, 600.0 - index, index) for index, tokens in enumerate((900, 700, 600)))
TIGHT = tuple(Ask(tokens, 20.0, 10 + index) for index, tokens in enumerate((40, 400, 90, 500)))
SCORED = Ask(640, 500.0, seed=30)
TURNS = (Ask(300, 300.0, seed=40), Ask(60, 300.0, seed=41))
LOGPROB_TOLERANCE = 2e-4
EXPECTED = ("yields", "given_up")
LONGEST_S = 240.0


def score(instance: Any) -> list[tuple[float, int]]:
    """Logprob and id of every token of the answer, and of the prompt from its first token on."""
    body = body_of(SCORED, return_logprob=True, logprob_start_len=1)
    told = instance.request("/generate", body)["meta_info"]
    pairs = told["input_token_logprobs"][1:] + told["output_token_logprobs"]
    return [(float(logprob), int(token)) for logprob, token, *_ in pairs]


def talk(instance: Any) -> list[list[int]]:
    """Two turns of one session; the second sees the first and its answer."""
    session = instance.request("/open_session", {"capacity_of_str_len": 10_000})
    answers = []
    for ask in TURNS:
        more = {"session_params": {"id": session, "rid": None}}
        answers.append(list(instance.request("/generate", body_of(ask, **more))["output_ids"]))
    instance.request("/close_session", {"session_id": session})
    return answers


@pytest.fixture(scope="module")
def stock(start_instance: Any, llama_fixture: Path) -> dict[str, Any]:
    """What SGLang's own scheduler answers, one request at a time."""
    engine = EngineConfig(scheduler=SchedulerKind.STOCK)
    with start_instance(llama_fixture, *ARGUMENTS, engine=engine) as instance:
        return {
            "ids": {a: instance.greedy_ids(prompt_of(a), NEW_TOKENS) for a in (*LOOSE, *TIGHT)},
            "scores": score(instance),
            "turns": talk(instance),
        }


def answer_round(instance: Any, pause_s: float) -> dict[str, Any]:
    """What `stock` has: the loose ones `pause_s` apart, then all others at once."""
    with ThreadPoolExecutor(16) as pool:
        asked = {}
        for ask in LOOSE:
            asked[ask] = pool.submit(instance.request, "/generate", body_of(ask))
            time.sleep(pause_s)
        scored = pool.submit(score, instance)
        asked |= {a: pool.submit(instance.request, "/generate", body_of(a)) for a in TIGHT}
        turns = pool.submit(talk, instance)
        return {
            "ids": {ask: list(answer.result(300)["output_ids"]) for ask, answer in asked.items()},
            "scores": scored.result(300),
            "turns": turns.result(300),
        }


def check_round(answers: dict[str, Any], stock: dict[str, Any]) -> None:
    """Equal tokens, and logprobs as near as chunks of other sizes leave them."""
    assert answers["ids"] == stock["ids"]
    assert answers["turns"] == stock["turns"]
    logprobs, tokens = zip(*answers["scores"], strict=True)
    stock_logprobs, stock_tokens = zip(*stock["scores"], strict=True)
    assert tokens == stock_tokens
    assert logprobs == pytest.approx(stock_logprobs, abs=LOGPROB_TOLERANCE)


def test_special_requests_and_short_kv_change_no_answer(
    start_instance: Any, llama_fixture: Path, stock: dict[str, Any]
) -> None:
    scheduling = SchedulingConfig(order="budget", governor="tpot")
    options = {"engine": EngineConfig(report_interval_s=0.02), "scheduling": scheduling}
    draw, end_s = Random(1), time.monotonic() + LONGEST_S
    with start_instance(llama_fixture, *ARGUMENTS, **options) as instance:
        missing = set(EXPECTED)
        # How far a prompt has come when a tighter one arrives is a matter of timing.
        while missing:
            assert time.monotonic() < end_s, f"never seen: {missing}"
            check_round(answer_round(instance, draw.uniform(0.0, 0.1)), stock)
            seen = scheduling_of(instance, is_empty)
            assert (seen.counts["faults"], seen.started) == (0, 0)
            missing = {name for name in EXPECTED if not seen.counts[name]}
            instance.flush_cache()
