"""How much longer prompt work takes on this engine than it would alone.

chunk │ decode │ chunk │ decode │ …      inflation = wall time from chunk to chunk
└── wall ──────┘                                     / time of the chunk alone
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Annotated

import msgspec

from bana.slo.order import EngineLoad
from bana.slo.steps import StepModel, StepShape


@dataclasses.dataclass(frozen=True)
class LoadOptions:
    """How far back a load looks.

    Chunks fade with a time constant of `memory_chunks`; one chunk counts as at most `surge` times
    the present inflation, so that a stall is not a load. The demoted share is that of the last
    `window_tokens` prompt tokens, in at most `window_portions` portions.
    """

    memory_chunks: Annotated[float, msgspec.Meta(ge=1, le=100_000)] = 32.0
    surge: Annotated[float, msgspec.Meta(ge=1.1, le=100)] = 4.0
    window_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**40)] = 65_536
    window_portions: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 1024


class _Portion(msgspec.Struct, frozen=True):
    tokens: int
    demoted_tokens: int


class LoadTracker:
    """What an `EngineLoad` says, kept up to date chunk by chunk. Memory is bounded; all is O(1)."""

    def __init__(self, options: LoadOptions | None = None) -> None:
        self._options = options or LoadOptions()
        self._wall_s = 0.0
        self._alone_s = 0.0
        self._portions: deque[_Portion] = deque()
        self._tokens = 0
        self._demoted_tokens = 0

    @property
    def inflation(self) -> float:
        """Wall time of recent prompt work over its time alone, at least 1."""
        return max(self._wall_s / self._alone_s, 1.0) if self._alone_s > 0 else 1.0

    @property
    def demoted_share(self) -> float:
        """The share of recently computed prompt tokens that belonged to lost requests."""
        return self._demoted_tokens / self._tokens if self._tokens else 0.0

    def observe_chunk(self, wall_s: float, alone_s: float) -> None:
        """Count a chunk that would take `alone_s` and took `wall_s` until the next could start.

        `wall_s` is the sum of the steps' times, so that it holds the decode steps in between and
        no time in which nothing ran. A chunk without a known time alone is ignored.
        """
        if not (0 < alone_s < float("inf") and 0 <= wall_s < float("inf")):
            return
        longest_s = self._options.surge * self.inflation * alone_s
        keep = 1.0 - 1.0 / self._options.memory_chunks
        self._wall_s = keep * self._wall_s + min(max(wall_s, alone_s), longest_s)
        self._alone_s = keep * self._alone_s + alone_s

    def observe_idle(self) -> None:
        """The engine ran dry: nothing shares its time with the next prompt."""
        self._wall_s = self._alone_s = 0.0

    def observe_portion(self, prompt_tokens: int, demoted_tokens: int) -> None:
        """Count what a step computes of one prompt, `demoted_tokens` of it for a lost request."""
        self._portions.append(_Portion(prompt_tokens, demoted_tokens))
        self._tokens += prompt_tokens
        self._demoted_tokens += demoted_tokens
        while len(self._portions) > self._options.window_portions or self._is_oldest_spare():
            oldest = self._portions.popleft()
            self._tokens -= oldest.tokens
            self._demoted_tokens -= oldest.demoted_tokens

    def estimate_load(self, model: StepModel, chunk: StepShape, full: StepShape) -> EngineLoad:
        """The load now; with the instance nearly full, `full` decodes between such a `chunk`."""
        return EngineLoad(
            inflation=self.inflation,
            full_inflation=estimate_inflation(model, chunk, full),
            demoted_share=self.demoted_share,
        )

    def _is_oldest_spare(self) -> bool:
        """Whether the window is covered without its oldest portion."""
        return self._tokens - self._portions[0].tokens >= self._options.window_tokens


def estimate_inflation(model: StepModel, chunk: StepShape, batch: StepShape) -> float:
    """How much longer `chunk` takes when `batch` decodes once between chunks; 1 where unknown."""
    alone_s = model.estimate_step_s(chunk)
    return 1.0 + model.estimate_step_s(batch) / alone_s if alone_s > 0 else 1.0
