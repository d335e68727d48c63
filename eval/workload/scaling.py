"""Shorter or longer prompts, so that a trace fits another model, with its sharing kept."""

from __future__ import annotations

import math

from bana.slo.errors import ConfigError

# What products of floats are off by: 1000 * 0.07 is not 70.
ROUNDING = 1e-9


def scale_length(tokens: int, scale: float) -> int:
    """`tokens` times `scale`, rounded up: at least 1, and more never becomes fewer."""
    return max(1, math.ceil(tokens * scale - ROUNDING))


def scale_block(block_tokens: int, scale: float) -> int:
    """The scaled size of a block; ConfigError unless it is whole, as exact sharing needs."""
    scaled = block_tokens * scale
    whole = round(scaled)
    if whole < 1 or abs(scaled - whole) > ROUNDING * block_tokens:
        nearest = max(1, whole)
        raise ConfigError(
            f"workload trace.length_scale={scale:g}: a block of {block_tokens} tokens would have "
            f"{scaled:g}, which is not whole, so sharing would not stay exact; take "
            f"{nearest / block_tokens!r} ({nearest} tokens a block)"
        )
    return whole
