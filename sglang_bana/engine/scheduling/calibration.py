"""A few requests before an instance serves, so that its first predictions are worth something.

Run by SGLang as a warm-up of its server: before the first client is heard, and through the
ordinary path, so that what is measured is what will be served.
"""

from __future__ import annotations

import asyncio
import logging
import time
from random import Random
from typing import Any

logger = logging.getLogger(__name__)

NAME = "bana_calibration"
# By this a scheduler knows that no client waits for the answer.
RID_PREFIX = "bana-calibration-"

PROMPT_TOKENS = (32, 64, 128, 256, 512, 1024)
DECODE_BATCHES = (1, 4)
DECODED_TOKENS = 8
# Small, and in every vocabulary.
HIGHEST_ID = 255
# A slow machine serves with what it has measured by then; what it meets, it learns.
LONGEST_S = 10.0
TIMEOUT_S = 300.0


async def calibrate(disaggregation_mode: str, tokenizer_manager: Any) -> None:
    """Decode batches and prompts of growing length, as far as they get within `LONGEST_S`.

    Leaves an empty cache behind. A refusal ends it: what has not been measured is learned from
    clients. TimeoutError when the engine does not answer: then it would not answer a client either.
    """
    if not tokenizer_manager.is_generation:
        return
    begun_s = time.monotonic()
    async with asyncio.timeout(TIMEOUT_S):
        try:
            for prompts, output_tokens in plan_rounds(_find_longest(tokenizer_manager)):
                if time.monotonic() - begun_s < LONGEST_S:
                    await _ask(tokenizer_manager, prompts, output_tokens)
        except ValueError as error:
            logger.warning("bana: calibration ended early: %s", error)
        await tokenizer_manager.flush_cache()


def plan_rounds(longest_tokens: int) -> list[tuple[list[int], int]]:
    """The prompts of each round, by their lengths, and how many tokens each answer has.

    No prompt is longer than `longest_tokens` with its answer.
    """
    room_tokens = longest_tokens - DECODED_TOKENS
    shortest = min(PROMPT_TOKENS[0], room_tokens)
    if shortest < 1:
        return []
    rounds = [([shortest] * requests, DECODED_TOKENS) for requests in DECODE_BATCHES]
    return rounds + [([tokens], 1) for tokens in PROMPT_TOKENS if tokens <= room_tokens]


def _find_longest(tokenizer_manager: Any) -> int:
    """What both the model and the KV pool have room for."""
    context = int(tokenizer_manager.context_len)
    fitting = tokenizer_manager.max_req_input_len
    return (context if fitting is None else min(context, int(fitting))) - 1


async def _ask(tokenizer_manager: Any, prompt_tokens: list[int], output_tokens: int) -> None:
    """One prompt of each length, together."""
    from sglang.srt.managers.io_struct import GenerateReqInput

    draw = Random(f"{prompt_tokens}{output_tokens}")
    request = GenerateReqInput(
        rid=[f"{RID_PREFIX}{draw.getrandbits(64):016x}" for _ in prompt_tokens],
        input_ids=[[draw.randint(3, HIGHEST_ID) for _ in range(n)] for n in prompt_tokens],
        sampling_params={"max_new_tokens": output_tokens, "temperature": 0, "ignore_eos": True},
    )
    async for _ in tokenizer_manager.generate_request(request, None):
        pass
