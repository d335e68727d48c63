"""How long a step of an engine takes: its shape and the coefficients that price it.

A step computes `prefill_tokens` of prompts and one token of every decoding request. Its time is a
sum of what the hardware does: a fixed cost, work per token, and attention over what each new token
sees.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]


class StepShape(msgspec.Struct, frozen=True):
    """One step, or one planned.

    `attended_tokens` sums, over all prompt tokens of the step, the tokens each of them sees;
    `context_tokens` sums the lengths of the decoding requests.
    """

    prefill_tokens: int = 0
    attended_tokens: float = 0.0
    decode_requests: int = 0
    context_tokens: int = 0


class StepModel(msgspec.Struct, frozen=True):
    """Coefficients of a step's time, each in seconds and never negative."""

    prefill_base_s: float
    prefill_token_s: float
    attended_token_s: float
    decode_base_s: float
    decode_request_s: float
    context_token_s: float

    def estimate_step_s(self, shape: StepShape) -> float:
        """Seconds of a step of `shape`, 0 for an empty one; a mixed step pays the larger base."""
        bases = []
        work_s = 0.0
        if shape.prefill_tokens:
            bases.append(self.prefill_base_s)
            work_s += self.prefill_token_s * shape.prefill_tokens
            work_s += self.attended_token_s * shape.attended_tokens
        if shape.decode_requests:
            bases.append(self.decode_base_s)
            work_s += self.decode_request_s * shape.decode_requests
            work_s += self.context_token_s * shape.context_tokens
        return max(bases, default=0.0) + work_s

    def estimate_prefills_s(
        self, new_tokens: Integers, prefix_tokens: Integers, chunk_tokens: int
    ) -> Floats:
        """`estimate_prefill_s` of many prompts at once, each with at least one new token."""
        chunks = -(-new_tokens // chunk_tokens)
        attended = new_tokens * prefix_tokens + new_tokens * (new_tokens + 1) / 2
        return (
            chunks * self.prefill_base_s
            + new_tokens * self.prefill_token_s
            + attended * self.attended_token_s
        )

    def estimate_prefill_s(self, new_tokens: int, prefix_tokens: int, chunk_tokens: int) -> float:
        """Seconds until the first token of a prompt served alone, in chunks of `chunk_tokens`."""
        if new_tokens <= 0:
            return 0.0
        chunks = -(-new_tokens // chunk_tokens)
        return (
            chunks * self.prefill_base_s
            + new_tokens * self.prefill_token_s
            + count_attended(new_tokens, prefix_tokens) * self.attended_token_s
        )


class EnginePrices(msgspec.Struct, frozen=True):
    """What computing costs on one engine now: `model` of steps of at most `chunk_tokens` of
    prompts, which take `inflation` times as long beside what else it does.
    """

    model: StepModel
    chunk_tokens: int
    inflation: float

    def estimate_prefill_s(self, new_tokens: int, prefix_tokens: int) -> float:
        """Seconds until so many tokens behind a prefix are computed."""
        alone_s = self.model.estimate_prefill_s(new_tokens, prefix_tokens, self.chunk_tokens)
        return self.inflation * alone_s

    def estimate_prefills_s(self, new_tokens: Integers, prefix_tokens: Integers) -> Floats:
        """`estimate_prefill_s` of many prompts at once, each with at least one new token."""
        alone_s = self.model.estimate_prefills_s(new_tokens, prefix_tokens, self.chunk_tokens)
        return self.inflation * alone_s


def count_attended(new_tokens: float, prefix_tokens: int) -> float:
    """The tokens seen by `new_tokens` consecutive ones after a prefix, summed (causal mask)."""
    return new_tokens * prefix_tokens + new_tokens * (new_tokens + 1) / 2
