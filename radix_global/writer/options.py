"""The bounds of writing."""

from __future__ import annotations

import dataclasses

from bana.slo.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class WriterOptions:
    """How much may wait, and for how long, in each tier's queue.

    A page gives way to reads for `defer_s` at most, with 0 not at all (naive); after `give_up_s` it
    is no longer written, so that a stalled tier does not keep the arena's pages leased. While it
    gives way, the tier is looked at every `recheck_s`. `memory_s` is over how long
    bandwidth is averaged.
    """

    max_pages: int = 4_096
    max_bytes: int = 2**30
    defer_s: float = 1.0
    give_up_s: float = 10.0
    recheck_s: float = 0.02
    memory_s: float = 10.0

    def __post_init__(self) -> None:
        for name in ("max_pages", "max_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} {getattr(self, name)}, allowed: >= 1; leave it out")
        for name in ("recheck_s", "memory_s"):
            if not 0.001 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} {getattr(self, name)}, allowed: >= 0.001; leave it out")
        if not 0 <= self.defer_s <= self.give_up_s < float("inf"):
            raise ConfigError(
                f"defer_s {self.defer_s} and give_up_s {self.give_up_s}, allowed: >= 0, the "
                "second a finite one and no less than the first"
            )
