"""Which share of an open-ended answer's limit is expected to be used, as SGLang guesses it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class RatioSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """SGLang's defaults: it begins at `initial` and falls to `lowest` within `decay_steps`.

    After a retraction it is what those that stayed have had of their limits, with `ahead_steps`
    tokens more for each.
    """

    initial: float = 0.7
    lowest: float = 0.098
    decay_steps: int = 600
    ahead_steps: int = 20


class Lengths(msgspec.Struct, frozen=True):
    """What one decoding request has got, and what it may get."""

    emitted: int
    limit: int


class OutputRatio:
    """The share, step by step."""

    def __init__(self, spec: RatioSpec) -> None:
        self._spec = spec
        self.value = spec.initial

    def decay(self) -> None:
        """A decode step found room."""
        fall = (self._spec.initial - self._spec.lowest) / self._spec.decay_steps
        self.value = max(self.value - fall, self._spec.lowest)

    def relearn(self, stayed: Sequence[Lengths]) -> None:
        """A decode step found none: guess anew from those that stayed."""
        had = sum(one.emitted for one in stayed) + self._spec.ahead_steps * len(stayed)
        self.value = min(1.0, had / (sum(one.limit for one in stayed) + 1))
