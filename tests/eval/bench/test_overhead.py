from __future__ import annotations

from random import Random

import msgspec
import pytest

from bana.eval.bench.closed import ClosedResult
from bana.eval.bench.errors import BenchError
from bana.eval.bench.exchange import CountedExchange
from bana.eval.bench.harness import Scale
from bana.eval.bench.overhead import judge_throughput
from bana.eval.bench.overhead_round import draw_bodies, summarise_round
from bana.eval.bench.overhead_settings import SCALES, OverheadSettings
from bana.slo.figures import Figure

SETTINGS = OverheadSettings(
    starts=1, pairs=1, control_pairs=1, shared_pairs=1, requests=6, prompt_tokens=20
)


def answered(tokens: int) -> CountedExchange:
    exchange = CountedExchange(0.0)
    exchange.first_event_s = 0.25
    event = {"text": "x", "meta_info": {"completion_tokens": tokens, "id": "a"}}
    exchange.last_event = b"data: " + msgspec.json.encode(event)
    return exchange


def test_both_sides_get_the_same_prompts_and_no_two_rounds_share_one() -> None:
    one, again, other = (draw_bodies(SETTINGS, Random(seed)) for seed in (1, 1, 2))

    assert one == again
    prompts = [tuple(body["input_ids"]) for body in [*one, *other]]  # type: ignore[arg-type]
    assert len({prompt[:4] for prompt in prompts}) == 12
    assert all(len(prompt) == 20 for prompt in prompts)


def test_tokens_are_those_the_engine_counted() -> None:
    values = summarise_round(ClosedResult([answered(64), answered(64)], wall_s=4.0), 64)

    assert values["tokens_per_s"] == 32.0
    assert values["first_token_p50_ms"] == 250.0


@pytest.mark.parametrize("last", [answered(63), CountedExchange(0.0)])
def test_an_answer_of_another_length_makes_the_round_invalid(last: CountedExchange) -> None:
    with pytest.raises(BenchError):
        summarise_round(ClosedResult([answered(64), last], wall_s=1.0), 64)


@pytest.mark.parametrize(
    ("value", "low", "met"),
    [(0.985, 0.955, True), (0.975, 0.955, False), (0.99, 0.94, False)],
)
def test_both_aims_must_hold(value: float, low: float, met: bool) -> None:
    figure = judge_throughput(Figure(value=value, low=low, high=1.0, unit="ratio"))

    assert figure.met is met
    assert figure.aim == ">= 0.98 (median) and >= 0.95 (low)"


@pytest.mark.parametrize("scale", [Scale.DEFAULT, Scale.FULL])
def test_what_claims_something_alternates_often_enough(scale: Scale) -> None:
    settings = SCALES[scale]
    assert settings.starts % 2 == 0
    assert settings.starts * settings.pairs >= 10
    assert settings.starts * min(settings.control_pairs, settings.shared_pairs) >= 5
