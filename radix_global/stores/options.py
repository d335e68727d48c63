"""How large a directory store may grow, and in what steps it works."""

from __future__ import annotations

import dataclasses

from bana.radix_global.stores.page import HEADER_BYTES
from bana.radix_global.stores.segment import Sync
from bana.slo.errors import ConfigError

MIB = 2**20


@dataclasses.dataclass(frozen=True)
class DirectoryOptions:
    """Bounds of a directory store; ConfigError where they cannot be held.

    `writers` is how many processes write to the folder at once; more than that may pass the
    capacity by a segment each. `kept_share` of a segment may be filled with pages that were read
    since they were written, when theirs is evicted. `scan_pages` bounds one refresh.
    """

    capacity_bytes: int
    segment_bytes: int = 256 * MIB
    writers: int = 1
    kept_share: float = 0.5
    max_pages: int = 4_000_000
    max_segments: int = 65_536
    max_open_segments: int = 256
    scan_pages: int = 8_192
    sync: Sync = Sync.NEVER

    def __post_init__(self) -> None:
        for name in ("writers", "max_pages", "max_segments", "max_open_segments", "scan_pages"):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"{name} {value}, allowed: >= 1; leave it out for the default")
        if self.segment_bytes <= HEADER_BYTES:
            raise ConfigError(
                f"segment_bytes {self.segment_bytes}, allowed: > {HEADER_BYTES}; a segment should "
                "hold hundreds of pages"
            )
        if not 0 <= self.kept_share <= 0.5:
            raise ConfigError(
                f"kept_share {self.kept_share}, allowed: 0 to 0.5, so that an eviction frees at "
                "least half of what it takes"
            )
        if self.capacity_bytes < 2 * self.reserve_bytes:
            raise ConfigError(
                f"capacity_bytes {self.capacity_bytes}, allowed: >= {2 * self.reserve_bytes} with "
                f"{self.writers} writer(s) and segments of {self.segment_bytes} bytes; make the "
                "segments smaller or the capacity larger"
            )

    @property
    def kept_bytes(self) -> int:
        """How much of one new segment may be pages kept from evicted ones."""
        return int(self.kept_share * self.segment_bytes)

    @property
    def segment_pages(self) -> int:
        """How many pages one segment may hold, so that a bound on pages evicts in steps too."""
        return max(1, self.max_pages // 8)

    @property
    def reserve_bytes(self) -> int:
        """What all writers may add before each looks at the folder again, copies included."""
        return self.writers * (self.segment_bytes + self.kept_bytes)

    @property
    def max_payload_bytes(self) -> int:
        """The longest page that fits into a segment, after the pages kept there."""
        return self.segment_bytes - self.kept_bytes - HEADER_BYTES
