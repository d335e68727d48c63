"""One saturated round: which requests it sends, and what its answers say."""

from __future__ import annotations

import statistics
from random import Random

import msgspec

from bana.eval.bench.closed import ClosedResult
from bana.eval.bench.errors import BenchError
from bana.eval.bench.exchange import CountedExchange
from bana.eval.bench.overhead_settings import OverheadSettings

GENERATE = "/generate"


class TokenCount(msgspec.Struct):
    """What of a generation's last event matters here."""

    completion_tokens: int


class LastEvent(msgspec.Struct):
    """The last event of a generation."""

    meta_info: TokenCount


def draw_bodies(settings: OverheadSettings, rng: Random) -> list[dict[str, object]]:
    """The requests of a round: random token ids, so that no two share a prefix of a page."""
    sampling = {
        "max_new_tokens": settings.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    return [
        {
            "input_ids": [
                rng.randint(settings.first_token_id, settings.last_token_id)
                for _ in range(settings.prompt_tokens)
            ],
            "sampling_params": sampling,
            "stream": True,
        }
        for _ in range(settings.requests)
    ]


def summarise_round(result: ClosedResult, output_tokens: int) -> dict[str, float]:
    """Tokens per second of a round; BenchError when an answer is shorter or longer than asked."""
    tokens = [_count_tokens(exchange) for exchange in result.exchanges]
    short = [count for count in tokens if count != output_tokens]
    if short:
        raise BenchError(
            f"{len(short)} answers had other lengths than the {output_tokens} tokens asked for, "
            f"such as {short[0]}"
        )
    # Not the first byte: SGLang sends its headers before there is a token.
    first = [e.first_event_s - e.due_s for e in result.exchanges if e.first_event_s is not None]
    return {
        "tokens_per_s": sum(tokens) / result.wall_s,
        "wall_s": result.wall_s,
        "first_token_p50_ms": statistics.median(first) * 1e3,
    }


def _count_tokens(exchange: CountedExchange) -> int:
    payload = exchange.last_event.removeprefix(b"data:")
    try:
        return msgspec.json.decode(payload, type=LastEvent).meta_info.completion_tokens
    except msgspec.MsgspecError as error:
        raise BenchError(f"an answer does not tell its tokens: {payload[:200]!r}") from error
