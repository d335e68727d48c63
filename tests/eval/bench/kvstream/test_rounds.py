"""What an answer says of its prompt, and which rounds prove nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bana.eval.bench.closed import ClosedResult
from bana.eval.bench.errors import BenchError
from bana.eval.bench.exchange import CountedExchange
from bana.eval.bench.kvstream.rounds import (
    count_differing,
    list_bodies,
    require_sources,
    summarise_round,
)
from bana.eval.bench.kvstream.settings import QUICK
from bana.eval.bench.kvstream.steps import STEPS

PLANS = {step.name: step for step in STEPS}
HELD = QUICK.documents * QUICK.document_tokens
NOTHING = {
    "device_tokens": 0.0,
    "arena_tokens": 0.0,
    "tier_1_tokens": 0.0,
    "tier_2_tokens": 0.0,
    "computed_tokens": 0.0,
}


def answered(
    ids: tuple[int, ...] = (1, 2, 3, 4), ttft_s: float = 0.5, **meta: Any
) -> CountedExchange:
    exchange = CountedExchange(10.0)
    exchange.first_event_s = 10.0 + ttft_s
    told = {"prompt_tokens": 100, "cached_tokens": 0, **meta}
    event = {"text": "x", "output_ids": ids, "meta_info": told}
    exchange.last_event = b"data: " + msgspec.json.encode(event)
    return exchange


def summarise(*exchanges: CountedExchange) -> dict[str, float]:
    return summarise_round(QUICK, ClosedResult(list(exchanges), wall_s=4.0))


def test_a_round_is_its_rate_its_mean_ttft_and_the_sources_of_its_tokens() -> None:
    # The host's tokens are those of the arena, and SGLang counts storage once more.
    details = {"device": 16, "host": 16, "tier_1": 32, "storage": 32, "storage_backend": "bana"}
    values = summarise(
        answered(ttft_s=0.5, cached_tokens=64, cached_tokens_details=details),
        answered(ttft_s=1.5, cached_tokens=8),
    )

    assert values["requests_per_s"] == 0.5
    assert values["ttft_mean_s"] == 1.0
    sources = {name: values[name] for name in NOTHING}
    assert sources == {
        "device_tokens": 24.0,
        "arena_tokens": 16.0,
        "tier_1_tokens": 32.0,
        "tier_2_tokens": 0.0,
        "computed_tokens": 36.0 + 92.0,
    }


def test_answers_are_compared_by_their_tokens() -> None:
    one = summarise(answered((1, 2, 3, 4)), answered((5, 6, 7, 8)))
    again = summarise(answered((1, 2, 3, 4), ttft_s=9.0), answered((5, 6, 7, 9)))

    assert count_differing(one, one) == 0
    assert count_differing(one, again) == 1


@pytest.mark.parametrize("last", [answered((1, 2)), CountedExchange(0.0)])
def test_an_answer_that_is_none_makes_the_round_invalid(last: CountedExchange) -> None:
    with pytest.raises(BenchError):
        summarise(answered(), last)


def test_prompts_are_asked_for_greedily() -> None:
    (body,) = list_bodies(QUICK, [[1, 2]])
    assert body["input_ids"] == [1, 2]
    assert body["sampling_params"] == {
        "max_new_tokens": QUICK.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


@pytest.mark.parametrize(
    ("step", "given", "words"),
    [
        ("no_store", {"device_tokens": 1.0}, "no_store got 1 tokens"),
        ("no_store", {"tier_1_tokens": 1.0}, "no_store got 1 tokens"),
        ("sequential", {}, r"sequential: its tiers gave 0\.0%"),
        ("batched", {"arena_tokens": HELD}, r"gave 0\.0%"),
        ("deferred", {"tier_1_tokens": 0.79 * HELD}, r"allowed: >= 80%"),
        ("completion", {"tier_1_tokens": HELD}, "something from each of 2"),
    ],
)
def test_a_step_that_is_not_what_it_is_called_is_invalid(
    step: str, given: dict[str, float], words: str
) -> None:
    with pytest.raises(BenchError, match=words):
        require_sources(QUICK, PLANS[step], {**NOTHING, **given})


@pytest.mark.parametrize(
    ("step", "given"),
    [
        ("no_store", {"computed_tokens": HELD}),
        ("sequential", {"tier_1_tokens": HELD}),
        ("second_tier", {"tier_1_tokens": 0.5 * HELD, "tier_2_tokens": 0.4 * HELD}),
    ],
)
def test_a_step_that_does_what_it_is_called_for_counts(step: str, given: dict[str, float]) -> None:
    require_sources(QUICK, PLANS[step], {**NOTHING, **given})
