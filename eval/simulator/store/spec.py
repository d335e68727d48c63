"""What a scene says of a store: its arena, its tiers, and what the policies know of them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import msgspec

from bana.eval.workload.spec import Section, Text

Pages = Annotated[int, msgspec.Meta(ge=1, le=2**32)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=60_000)]
BytesPerS = Annotated[float, msgspec.Meta(gt=0, le=1e15)]
# One bit of a mask is the arena, the others are tiers.
MAX_TIERS = 7


class Writes(StrEnum):
    """What writing takes of a tier."""

    DEFERRED = "deferred"  # nothing: it is done where nothing else is to be done
    SHARED = "shared"  # its bandwidth, in turn with reads


class Weather(StrEnum):
    """What policies are told of a tier's speed."""

    MEASURED = "measured"  # as the daemon sees it; nothing before the first read
    TRUE = "true"


class TierSpec(Section, frozen=True):
    """A tier gives `bytes_per_s` after `latency_ms` for each lot; a lot takes a lognormal factor of
    `jitter` longer or shorter. It keeps the `capacity_pages` that were used last (absent: all).
    """

    bytes_per_s: BytesPerS
    latency_ms: Milliseconds = 0.5
    jitter: Annotated[float, msgspec.Meta(ge=0, le=3)] = 0.0
    capacity_pages: Pages | None = None


class StoreSpec(Section, frozen=True):
    """Tiers by name, in the order of their places; `speed` multiplies what each of them gives.

    A token has `token_bytes` of KV. The arena holds `arena_pages` (absent: all that were ever
    computed); loading one of them takes `copy_page_ms`, hidden behind the step as far as that is as
    long. The store answers after `answer_ms`; who has just asked misses the step that begins
    meanwhile, unless that is within `patience_ms`, for which steps wait. What was computed is on
    every tier after `write_delay_ms`, where writes are `deferred`. Tiers read and write `lot_pages`
    at a time.
    """

    tiers: Annotated[Mapping[Text, TierSpec], msgspec.Meta(max_length=MAX_TIERS)]
    token_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**32)]
    arena_pages: Pages | None = None
    speed: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0
    lot_pages: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 8
    answer_ms: Milliseconds = 1.0
    patience_ms: Milliseconds = 0.0
    copy_page_ms: Milliseconds = 0.0
    write_delay_ms: Milliseconds = 50.0
    writes: Writes = Writes.DEFERRED
    weather: Weather = Weather.MEASURED
