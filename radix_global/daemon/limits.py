"""What the daemon grants at most, to one client and to all of them."""

from __future__ import annotations

import msgspec

from bana.radix_global.wire_parts import MAX_BATCH_PAGES
from bana.slo.errors import ConfigError


class StoreLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the daemon's books; shares are of the arena's slots.

    A frozen client keeps what it holds: `reserved_pages` and `leased_share` bound what that can
    be. `reserved_share` and `reading_share` leave room for everybody else; pages that wait to be
    written stay in the arena, each tier's up to its part of `writing_share`.
    """

    max_owners: int = 256
    max_wants: int = 4096
    reserved_pages: int = 1024
    leased_share: float = 0.75
    reserved_share: float = 0.25
    reading_share: float = 0.5
    writing_share: float = 0.5
    pinned_share: float = 0.5

    def __post_init__(self) -> None:
        most = {"max_owners": 4096, "max_wants": 2**20, "reserved_pages": MAX_BATCH_PAGES // 4}
        for name, high in most.items():
            if not 1 <= getattr(self, name) <= high:
                raise ConfigError(f"store.{name}={getattr(self, name)}, allowed: 1..{high}")
        for name in (field for field in self.__struct_fields__ if field.endswith("_share")):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"store.{name}={getattr(self, name)}, allowed: > 0 to 1")
