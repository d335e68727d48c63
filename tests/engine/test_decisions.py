"""Decisions of a real engine under every kind of pressure, taken again from its log."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from urllib.error import HTTPError

import pytest

from bana.eval.simulator.replay import replay_log
from bana.slo.decisions import LogHeader, OrderRecord, decode_line
from sglang_bana.config import SchedulingConfig

from .asks import promise_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

CLIENTS = 10
LONGEST_S = 480.0
SPELL_S = 10.0
MIN_DECISIONS = 1_000
# Those of the default policies that an engine can meet: it asks only where a prompt waits, and
# every request has a TPOT limit.
REASONS = {
    "order": {"deadline", "restored", "demoted", "demoted_share"},
    "governor": {"alternate", "full", "tpot", "average", "floor", "trade", "no_decodes"},
    "admission": {"feasible", "infeasible", "infeasible_alone"},
}


def draw_body(rng: Random) -> dict[str, Any]:
    """A request whose limits lie anywhere between hopeless and never missed."""
    promise = promise_of(10 ** rng.uniform(-2.5, 1.5), 10 ** rng.uniform(-3.5, 1.0))
    sampling = {"max_new_tokens": rng.choice((1, 4, 24)), "temperature": 0, "ignore_eos": True}
    return {
        "input_ids": [rng.randrange(3, 400) for _ in range(rng.choice((20, 120, 500, 900)))],
        "sampling_params": {**sampling, "custom_params": promise},
    }


def offer_until(instance: Any, end_s: float, seed: int) -> Counter[int]:
    """One client, one request after the other; how many answers had which status."""
    rng, seen = Random(seed), Counter[int]()
    while time.monotonic() < end_s:
        try:
            instance.request("/generate", draw_body(rng))
            seen[200] += 1
        except HTTPError as error:
            seen[error.code] += 1
    return seen


def read_reasons(log: Path) -> tuple[dict[str, set[str]], int]:
    """The reasons in a log by the question, and how many decisions it has."""
    header, *decisions = map(decode_line, log.read_bytes().splitlines())
    assert isinstance(header, LogHeader)
    reasons: dict[str, set[str]] = {question: set() for question in REASONS}
    for decision in decisions:
        assert not isinstance(decision, LogHeader)
        question = str(decision.__struct_config__.tag)
        plan = decision.plan
        reasons[question] |= {*plan.reasons} if isinstance(decision, OrderRecord) else {plan.reason}
    return reasons, len(decisions)


@pytest.fixture(scope="module")
def judging(start_instance: Any, llama_fixture: Path) -> Iterator[Any]:
    scheduling = SchedulingConfig(
        order="budget",
        governor="tpot",
        # Who is given up early is often feasible again, once the engine is less loaded.
        order_options={"guard": 8.0},
        admission="reject_infeasible",
        admission_options={"guard": 0.3},
        decision_log_bytes=2**28,
    )
    arguments = ("--chunked-prefill-size", "128", "--max-running-requests", "4")
    with start_instance(llama_fixture, *arguments, scheduling=scheduling) as instance:
        yield instance


def offer_spell(instance: Any, pool: ThreadPoolExecutor, spell: int) -> Counter[int]:
    """All clients for SPELL_S seconds, each with prompts of its own."""
    offer = partial(offer_until, instance, time.monotonic() + SPELL_S)
    seeds = range(spell * CLIENTS, (spell + 1) * CLIENTS)
    return sum(pool.map(offer, seeds), Counter[int]())


def test_a_log_with_every_reason_is_decided_again_to_the_letter(judging: Any) -> None:
    log = Path(judging.spec.run_dir) / "decisions-i0.jsonl"
    end_s = time.monotonic() + LONGEST_S
    answered, spell = Counter[int](), 0
    reasons, count = read_reasons(log)
    with ThreadPoolExecutor(CLIENTS) as pool:
        while time.monotonic() < end_s and not (reasons == REASONS and count > MIN_DECISIONS):
            answered += offer_spell(judging, pool, spell)
            reasons, count = read_reasons(log)
            spell += 1
    assert reasons == REASONS
    assert count > MIN_DECISIONS
    assert set(answered) == {200, 429}
    replay = replay_log(log)
    assert replay.decisions >= count
    assert replay.mismatches == ()
