"""The bounds and steps of reading."""

from __future__ import annotations

import dataclasses

from bana.slo.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class ReaderOptions:
    """How much may be wanted, how much a thread claims at once, when a read is overdue.

    A read is overdue after `stall_after_s`, or `stall_factor` times its tier's usual latency where
    that is longer. `memory_s` is over how long a tier's bandwidth is averaged.
    """

    max_wanted: int = 65_536
    lot_bytes: int = 4 * 2**20
    lot_pages: int = 32
    stall_after_s: float = 0.5
    stall_factor: float = 4.0
    memory_s: float = 10.0

    def __post_init__(self) -> None:
        for name, least in (("max_wanted", 1), ("lot_bytes", 1), ("lot_pages", 1)):
            value = getattr(self, name)
            if value < least:
                raise ConfigError(f"{name} {value}, allowed: >= {least}; leave it out")
        for name, least_s in (("stall_after_s", 0.001), ("stall_factor", 1), ("memory_s", 0.001)):
            value = getattr(self, name)
            if not least_s <= value < float("inf"):
                raise ConfigError(f"{name} {value}, allowed: >= {least_s}; leave it out")
