"""How a client finds its daemon, what it holds at most, and how long it waits."""

from __future__ import annotations

import msgspec

from bana.radix_global.keys import Namespace
from bana.radix_global.wire_parts import MAX_BATCH_PAGES
from bana.slo.errors import ConfigError


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One client: who it is, where its daemon listens, its bounds.

    `pid` and `start_ticks` name the process that the daemon watches. `stock_slots` are kept
    reserved for the next pages to be written. A daemon that has said nothing for `silent_after_s`
    in spite of pings is given up; it is looked for again after a backoff.
    """

    endpoint: str
    name: str
    namespace: Namespace
    page_bytes: int
    pid: int
    start_ticks: int
    stock_slots: int = 64
    max_wants: int = 4096
    max_unsent: int = 16_384
    attach_timeout_s: float = 60.0
    ping_interval_s: float = 0.5
    silent_after_s: float = 5.0
    reserve_retry_s: float = 0.05
    backoff_initial_s: float = 0.05
    backoff_max_s: float = 2.0

    def __post_init__(self) -> None:
        bounds = {"stock_slots": MAX_BATCH_PAGES // 4, "max_wants": 2**20, "max_unsent": 2**20}
        for name, most in bounds.items():
            if not 1 <= getattr(self, name) <= most:
                raise ConfigError(f"client.{name}={getattr(self, name)}, allowed: 1..{most}")
        for name in (field for field in self.__struct_fields__ if field.endswith("_s")):
            if not 0 < getattr(self, name) <= 86_400:
                raise ConfigError(f"client.{name}={getattr(self, name)}, allowed: > 0 to a day")
        if self.ping_interval_s * 2 > self.silent_after_s:
            raise ConfigError(
                f"client.silent_after_s={self.silent_after_s} is less than two pings of "
                f"{self.ping_interval_s} s; raise it"
            )
