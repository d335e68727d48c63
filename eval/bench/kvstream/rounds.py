"""What the answers of a round say: how fast, where prompt tokens came from, which tokens."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import msgspec
import xxhash

from bana.eval.bench.closed import ClosedResult
from bana.eval.bench.errors import BenchError
from bana.eval.bench.exchange import CountedExchange
from bana.eval.bench.kvstream.prompts import Prompt
from bana.eval.bench.kvstream.settings import KvStreamSettings
from bana.eval.bench.kvstream.steps import StepPlan
from bana.eval.bench.trials import Values

ANSWER = "answer_"
# What a float of a trial holds exactly.
ANSWER_BITS = 48


class AnswerMeta(msgspec.Struct, frozen=True):
    """What of an answer's account matters here; only what a store gave has details."""

    prompt_tokens: int
    cached_tokens: int
    cached_tokens_details: Mapping[str, object] | None = None


class Answer(msgspec.Struct, frozen=True):
    """The last event of a generation."""

    output_ids: tuple[int, ...]
    meta_info: AnswerMeta


def list_bodies(settings: KvStreamSettings, prompts: Sequence[Prompt]) -> list[dict[str, object]]:
    """The requests: greedy, streamed, all of one length."""
    sampling = {
        "max_new_tokens": settings.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    return [{"input_ids": p, "sampling_params": sampling, "stream": True} for p in prompts]


def summarise_round(settings: KvStreamSettings, result: ClosedResult) -> dict[str, float]:
    """The round in numbers; BenchError when an answer is not what was asked for."""
    answers = [_read_answer(settings, exchange) for exchange in result.exchanges]
    values = {
        "requests_per_s": len(answers) / result.wall_s,
        # Not from the first byte: SGLang sends its headers before there is a token.
        "ttft_mean_s": statistics.fmean(
            e.first_event_s - e.due_s for e in result.exchanges if e.first_event_s is not None
        ),
        "wall_s": result.wall_s,
    }
    sources = [_split_sources(settings, answer.meta_info) for answer in answers]
    for name in sources[0]:
        values[f"{name}_tokens"] = float(sum(source[name] for source in sources))
    digests = {f"{ANSWER}{n:03}": _digest(answer) for n, answer in enumerate(answers)}
    return {**values, **digests}


def require_sources(settings: KvStreamSettings, step: StepPlan, values: Values) -> None:
    """BenchError unless the step did what it stands for: restored from its tiers, or nothing."""
    given = {
        tier: values[f"tier_{tier}_tokens"] for tier in range(1, len(settings.tier_speeds) + 1)
    }
    if not step.tiers:
        cached = sum(given.values()) + values["arena_tokens"] + values["device_tokens"]
        if cached:
            raise BenchError(
                f"{step.name} got {cached:g} tokens from a cache, expected none: each prompt is to "
                "be computed; run again with --fresh"
            )
        return
    silent = [tier for tier in range(1, step.tiers + 1) if not given[tier]]
    held = settings.documents * settings.document_tokens
    share = sum(given.values()) / held
    if silent or share < settings.least_restored:
        raise BenchError(
            f"{step.name}: its tiers gave {share:.1%} of what they hold, allowed: >= "
            f"{settings.least_restored:.0%} and something from each of {step.tiers}; from each: "
            f"{given}, device {values['device_tokens']:g}, arena {values['arena_tokens']:g}, "
            f"computed {values['computed_tokens']:g} tokens"
        )


def count_differing(values: Values, baseline: Values) -> int:
    """How many answers of a round have other tokens than the baseline's."""
    names = [name for name in values if name.startswith(ANSWER)]
    return sum(values[name] != baseline[name] for name in names)


def _read_answer(settings: KvStreamSettings, exchange: CountedExchange) -> Answer:
    payload = exchange.last_event.removeprefix(b"data:")
    try:
        answer = msgspec.json.decode(payload, type=Answer)
    except msgspec.MsgspecError as error:
        raise BenchError(f"an answer does not tell its tokens: {payload[:200]!r}") from error
    if len(answer.output_ids) != settings.output_tokens:
        raise BenchError(
            f"an answer has {len(answer.output_ids)} tokens, asked for were "
            f"{settings.output_tokens}: {payload[:200]!r}"
        )
    return answer


def _split_sources(settings: KvStreamSettings, meta: AnswerMeta) -> dict[str, int]:
    """Each token of a prompt by its one source."""
    details = meta.cached_tokens_details
    told = {} if details is None else {k: n for k, n in details.items() if isinstance(n, int)}
    tiers = {f"tier_{tier}": told.get(f"tier_{tier}", 0) for tier in _number_tiers(settings)}
    restored = sum(tiers.values())
    device = told.get("device", 0) if told else meta.cached_tokens
    return {
        "device": device,
        "arena": meta.cached_tokens - device - restored,
        **tiers,
        "computed": meta.prompt_tokens - meta.cached_tokens,
    }


def _number_tiers(settings: KvStreamSettings) -> range:
    return range(1, len(settings.tier_speeds) + 1)


def _digest(answer: Answer) -> float:
    ids = msgspec.json.encode(answer.output_ids)
    return float(xxhash.xxh3_64_intdigest(ids) >> (64 - ANSWER_BITS))
