"""What an engine is asked before it serves: no more than it has room for, and a no is no end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sglang_bana.engine.scheduling.calibration import (
    DECODED_TOKENS,
    PROMPT_TOKENS,
    calibrate,
    plan_rounds,
)


class Asked:
    """SGLang's tokenizer manager, which refuses prompts of `refused_tokens` and more."""

    is_generation = True

    def __init__(self, context: int, fitting: int | None, refused_tokens: int = 10**9) -> None:
        self.context_len = context
        self.max_req_input_len = fitting
        self.prompts: list[list[int]] = []
        self.flushes = 0
        self._refused_tokens = refused_tokens

    async def generate_request(self, obj: Any, request: None) -> AsyncIterator[None]:
        lengths = [len(ids) for ids in obj.input_ids]
        if max(lengths) >= self._refused_tokens:
            raise ValueError("too long")
        self.prompts.append(lengths)
        yield None

    async def flush_cache(self) -> None:
        self.flushes += 1


@pytest.mark.parametrize("longest", [1, 8, 9, 20, 100, 1_031, 1_032, 100_000])
def test_prompts_fit_with_their_answers(longest: int) -> None:
    rounds = plan_rounds(longest)
    assert all(max(prompts) + DECODED_TOKENS <= longest for prompts, _ in rounds)
    assert bool(rounds) is (longest > DECODED_TOKENS)
    assert ([PROMPT_TOKENS[-1]] in [p for p, _ in rounds]) is (longest >= 1_032)


@pytest.mark.parametrize(("context", "fitting"), [(8_192, 600), (600, None), (600, 8_192)])
def test_neither_context_nor_pool_is_exceeded(context: int, fitting: int | None) -> None:
    asked = Asked(context, fitting)
    asyncio.run(calibrate("null", asked))
    assert max(map(max, asked.prompts)) == 512
    assert asked.flushes == 1


def test_a_refusal_ends_it_quietly(caplog: pytest.LogCaptureFixture) -> None:
    asked = Asked(8_192, None, refused_tokens=256)
    asyncio.run(calibrate("null", asked))
    assert max(map(max, asked.prompts)) == 128
    assert asked.flushes == 1
    assert "too long" in caplog.text


def test_what_generates_nothing_is_not_asked() -> None:
    asked = Asked(8_192, None)
    asked.is_generation = False
    asyncio.run(calibrate("null", asked))
    assert (asked.prompts, asked.flushes) == ([], 0)
