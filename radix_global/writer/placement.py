"""On which tiers a page is kept: the protocol and its policies by name.

Copies let whichever tier is free serve a page; each costs the bandwidth that reads want. KVStream
writes every page to every tier, and at 4 % prefix sharing is slower than one that does not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Protocol

import msgspec
import xxhash

from bana.slo.errors import ConfigError
from bana.slo.registry import PolicyEntry, PolicyRegistry


class TierRoom(msgspec.Struct, frozen=True):
    """How a tier fares; `bandwidth_bytes_per_s` is None where it has not been read from."""

    tier: int
    bandwidth_bytes_per_s: float | None
    write_backlog_bytes: int


class PlacementView(msgspec.Struct, frozen=True):
    """A page in the arena: new, or read just now.

    `held` is the mask of the tiers that have it, `reads` how often it was read from one, and
    `read_share` the share of reads in recent traffic, replication apart (`traffic.py`).
    """

    key: bytes
    held: int
    reads: int
    read_share: float
    tiers: tuple[TierRoom, ...]


class PlacementChoice(msgspec.Struct, frozen=True):
    """The mask of the tiers to write to now, 0 for none, and why."""

    tiers: int
    reason: str


class Placement(Protocol):
    """Law: only tiers of the view that do not hold the page; at least one if none holds it.

    Equal inputs give equal answers.
    """

    def choose_tiers(self, view: PlacementView) -> PlacementChoice: ...


class One:
    """One copy, dealt out by the tiers' bandwidth, so that a prefix is read from all at once."""

    def choose_tiers(self, view: PlacementView) -> PlacementChoice:
        if view.held:
            return PlacementChoice(0, "has_its_copy")
        return PlacementChoice(_mask(_prefer(view)[:1]), "one_copy")


class All:
    """A copy on every tier (KVStream)."""

    def choose_tiers(self, view: PlacementView) -> PlacementChoice:
        return PlacementChoice(_mask(_prefer(view)), "every_tier")


@dataclasses.dataclass(frozen=True)
class HotOptions:
    """How many reads make a page hot."""

    hot_reads: int = 2

    def __post_init__(self) -> None:
        if self.hot_reads < 1:
            raise ConfigError(f"hot_reads {self.hot_reads}, allowed: >= 1")


class Hot:
    """One copy, and one on every tier once the page has been read often enough."""

    def __init__(self, options: HotOptions) -> None:
        self._hot_reads = options.hot_reads
        self._one = One()

    def choose_tiers(self, view: PlacementView) -> PlacementChoice:
        if view.reads < self._hot_reads:
            return self._one.choose_tiers(view)
        return PlacementChoice(_mask(_prefer(view)), "hot")


@dataclasses.dataclass(frozen=True)
class AdaptiveOptions:
    """What makes a copy beyond the first pay.

    `gain` is the part of the bytes read that such a copy is expected to save its tiers, by letting
    whichever is free serve them: with 0.25 a second copy of everything is worth its writing when
    four times as much is read as is new. A tier with `busy_bytes` to write gets no such copies.
    """

    gain: float = 0.25
    busy_bytes: int = 64 * 2**20

    def __post_init__(self) -> None:
        if not 0 <= self.gain <= 1 or self.busy_bytes < 0:
            raise ConfigError(
                f"gain {self.gain} and busy_bytes {self.busy_bytes}, allowed: 0..1 and >= 0"
            )


class Adaptive:
    """One copy, and as many more as the reads of late have paid for.

    With R bytes read for each new one, c copies save gain x R and cost c - 1: as many as are worth
    it. R does not depend on how many are written, so the answer does not chase itself. Ours.
    """

    def __init__(self, options: AdaptiveOptions) -> None:
        self._gain = options.gain
        self._busy_bytes = options.busy_bytes

    def choose_tiers(self, view: PlacementView) -> PlacementChoice:
        preferred = _prefer(view)
        first = [] if view.held else preferred[:1]
        missing = self._copies(view) - view.held.bit_count() - len(first)
        calm = [room for room in preferred if room.write_backlog_bytes < self._busy_bytes]
        more = [room for room in calm if room not in first][: max(0, missing)]
        reason = "reads_pay_for_copies" if more else "writes_first"
        return PlacementChoice(_mask([*first, *more]), reason)

    def _copies(self, view: PlacementView) -> int:
        if view.read_share >= 1:
            return len(view.tiers)
        paid = self._gain * view.read_share / (1 - view.read_share)
        return 1 + min(len(view.tiers), math.floor(paid))


# A tier that gives nothing is the last choice, not an impossible one.
SLOWEST_BYTES_PER_S = 1.0


def _prefer(view: PlacementView) -> list[TierRoom]:
    """The tiers that lack the page, best first: by its key, in proportion to their bandwidth.

    Weighted rendezvous hashing: each is the first for its share of all pages. A bandwidth that is
    not known is taken for the mean of the others.
    """
    lacking = [room for room in view.tiers if not view.held >> room.tier & 1]
    known = [r.bandwidth_bytes_per_s for r in view.tiers if r.bandwidth_bytes_per_s]
    usual = sum(known) / len(known) if known else 1.0

    def cost(room: TierRoom) -> float:
        drawn = (xxhash.xxh3_64_intdigest(view.key, seed=room.tier) + 1) / 2**64
        given = room.bandwidth_bytes_per_s
        weight = usual if given is None else max(given, usual * 1e-6, SLOWEST_BYTES_PER_S)
        return -math.log(drawn) / weight

    return sorted(lacking, key=cost)


def _mask(rooms: Sequence[TierRoom]) -> int:
    return sum(1 << room.tier for room in rooms)


PLACEMENTS: PolicyRegistry[Placement] = PolicyRegistry(
    "placement",
    {
        "adaptive": PolicyEntry(Adaptive, AdaptiveOptions),
        "one": PolicyEntry(lambda _: One()),
        "all": PolicyEntry(lambda _: All()),
        "hot": PolicyEntry(Hot, HotOptions),
    },
    members=("choose_tiers",),
)
DEFAULT_PLACEMENT = "adaptive"
