"""Prompts of the client's own, for probes and isolated requests: valid, and unlike all others.

A prompt that the server has seen, in this run or an earlier one, would be answered from its
cache. So the randomness is seeded with the id of the run, never with the workload's seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random

import msgspec

from bana.eval.requests import Offered, Prompt

SMALL_TOKENS = 16
POOL_TOKENS = 4096
# Requests from which token ids are taken.
POOL_REQUESTS = 256


class PromptMaker:
    """Makes prompts for the server of one workload, whose token ids it takes as valid."""

    def __init__(self, requests: Sequence[Offered], rng: Random) -> None:
        self._rng = rng
        ids = (r.prompt.token_ids or () for r in requests[:POOL_REQUESTS])
        first = itertools.islice(itertools.chain.from_iterable(ids), POOL_TOKENS * 16)
        self._pool = sorted({int(token) for token in first})[:POOL_TOKENS]

    def make_small(self) -> Prompt:
        """A prompt of a few tokens: ids where the workload has some, else text."""
        if self._pool:
            return Prompt(token_ids=self._draw(SMALL_TOKENS))
        return Prompt(text=f"{self._tag()} Say one word.")

    def make_like(self, model: Prompt) -> Prompt:
        """A prompt as long as `model` and of its kind, that begins like no other."""
        if model.token_ids is not None:
            return Prompt(token_ids=self._draw(len(model.token_ids)))
        if model.text is not None:
            return Prompt(text=self._mark(model.text))
        first, *others = model.messages or ()
        marked = msgspec.structs.replace(first, content=self._mark(first.content))
        return Prompt(messages=(marked, *others))

    def _draw(self, count: int) -> list[int]:
        return self._rng.choices(self._pool, k=count)

    def _mark(self, text: str) -> str:
        """`text` behind a random word, cut to its old length."""
        marked = f"{self._tag()} {text}"
        return marked[: max(len(text), len(marked) - len(text))]

    def _tag(self) -> str:
        return f"{self._rng.getrandbits(64):016x}"
