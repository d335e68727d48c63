"""What the simulated engine is, as the flags of SGLang would say it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from bana.eval.simulator.ratio import RatioSpec
from bana.eval.workload.spec import Section

Count = Annotated[int, msgspec.Meta(ge=1, le=1_048_576)]
KvTokens = Annotated[int, msgspec.Meta(ge=1, le=2**40)]


class Overtaking(StrEnum):
    """Whether a prompt that has begun yields to one that the order puts before it."""

    BETWEEN_CHUNKS = "between_chunks"
    NEVER = "never"  # stock SGLang: the prompt that was cut goes on first


class TokensSeen(StrEnum):
    """When clients see what a step gave, and the governor knows of it."""

    AT_END = "at_end"
    # The overlap schedule where a launch computes, as on a CPU: results wait for the next launch.
    AFTER_NEXT = "after_next"


class EngineSpec(Section, frozen=True):
    """One instance.

    `chunk_tokens` bounds the prompt tokens of a step (`--chunked-prefill-size`), `kv_tokens` is
    the KV cache, `can_mix` is `--enable-mixed-chunk`. At most `max_half_done` prompts are begun and
    not finished; they keep their KV. An order is asked for `head_rows` requests. `tokens_seen`
    says when clients, and the governor, see what a step gave.
    """

    kv_tokens: KvTokens
    page_tokens: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 16
    chunk_tokens: Count = 2048
    max_running: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 256
    max_half_done: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 16
    can_mix: bool = False
    has_prefix_cache: bool = True
    overtaking: Overtaking = Overtaking.BETWEEN_CHUNKS
    tokens_seen: TokensSeen = TokensSeen.AT_END
    head_rows: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 64
    output_ratio: RatioSpec = RatioSpec()

    @property
    def kv_pages(self) -> int:
        """The KV cache in whole pages."""
        return self.kv_tokens // self.page_tokens
