"""What the next step does: how many prompt tokens, or a decode step first.

prefill chunk │ decode │ prefill chunk │ decode │ …
└── gap of every decoding request ──┘  kept under its TPOT limit
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec

from bana.slo.steps import StepModel


class StepKind(StrEnum):
    """Prompts only, decodes only, or both in one step."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


class StepView(msgspec.Struct, frozen=True):
    """The engine before a step.

    `tightest_tpot_s` is the smallest TPOT limit among decoding requests, None when none decodes.
    `prefill_tokens` is the prompt work that waits, `prefix_tokens` the context before its first
    token. `decodes_since_prefill` counts the decode steps since the last prompt work.
    `max_chunk_tokens` bounds a step; `page_tokens` is the granularity of a chunk that does not end
    its prompt. `can_mix` says that the engine can carry both in one step now.
    """

    model: StepModel
    decode_requests: int
    context_tokens: int
    tightest_tpot_s: float | None
    prefill_tokens: int
    prefix_tokens: int
    decodes_since_prefill: int
    max_chunk_tokens: int
    page_tokens: int
    can_mix: bool = False


class StepPlan(msgspec.Struct, frozen=True):
    """What to do, and why as a low-cardinality word; `prefill_tokens` is 0 for a decode step."""

    kind: StepKind
    prefill_tokens: int
    reason: str


class Governor(Protocol):
    """Law: 0 <= prefill_tokens <= max_chunk_tokens; DECODE only where something decodes; prompt
    work that waits is served after a bounded number of decode steps; equal inputs, equal answers.
    """

    def decide_step(self, view: StepView) -> StepPlan: ...
