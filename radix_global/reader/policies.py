"""Which tier reads which page: the protocol and its policies by name."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Protocol

import msgspec

from bana.radix_global.pages import MAX_TIERS
from bana.slo.errors import ConfigError
from bana.slo.registry import PolicyEntry, PolicyRegistry


class TierLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a tier is: of `width` threads, `reading` read and are in time, `overdue` are not.

    `waiting_bytes` are those of all pages that it may read next, `only_here_bytes` of those that no
    other tier may. `bandwidth_bytes_per_s` is what it was seen to give while busy, `latency_s` what
    a page takes there; None where it has not been read from, or not of late.
    """

    tier: int
    width: int
    reading: int
    overdue: int
    waiting_bytes: int
    only_here_bytes: int
    bandwidth_bytes_per_s: float | None
    latency_s: float | None


class OpenPage(msgspec.Struct, frozen=True):
    """A page to be read; `tiers` is the mask of those that hold it and have not been tried.

    `number` counts the pages wanted, `attempts` the reads of it that were begun.
    """

    key: bytes
    number: int
    size_bytes: int
    tiers: int
    attempts: int


class TierChoice(msgspec.Struct, frozen=True):
    """The mask of the tiers that may read a page, and why."""

    tiers: int
    reason: str


class ReadPolicy(Protocol):
    """Law: `choose_tiers` answers one or more of the page's tiers; `may_claim` lets some tier go
    on whenever no read is under way in time. Equal inputs give equal answers.

    A page goes to whichever of its chosen tiers claims it first; the most urgent goes first.
    """

    def choose_tiers(self, page: OpenPage, loads: Sequence[TierLoad]) -> TierChoice:
        """Asked when a page is wanted, and again when a tier failed it or is overdue."""
        ...

    def may_claim(self, tier: int, loads: Sequence[TierLoad]) -> bool:
        """Whether a reading thread of `tier` that has nothing to do may take pages."""
        ...


@dataclasses.dataclass(frozen=True)
class CompletionOptions:
    """How readily a slow tier leaves the last pages to faster ones.

    It does when they would have read all of them within `leave_factor` times what one page takes
    there; 0 is never, as in KVStream.
    """

    leave_factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.leave_factor <= 1:
            raise ConfigError(f"leave_factor {self.leave_factor}, allowed: 0 to 1")


class Completion:
    """Whoever has finished reads next: no split to be wrong about. Source: KVStream.

    Ours: a tier does not begin what the others would have finished before it, or a few pages would
    come later from two tiers than from the faster one.
    """

    def __init__(self, options: CompletionOptions) -> None:
        self._leave_factor = options.leave_factor

    def choose_tiers(self, page: OpenPage, loads: Sequence[TierLoad]) -> TierChoice:
        return TierChoice(page.tiers, "first_to_finish")

    def may_claim(self, tier: int, loads: Sequence[TierLoad]) -> bool:
        own = next(load for load in loads if load.tier == tier)
        if own.latency_s is None or own.only_here_bytes > 0:
            return True
        speed_bytes_per_s, latency_s = 0.0, math.inf
        for load in loads:
            if load.tier != tier and load.waiting_bytes > 0 and load.overdue < load.width:
                speed_bytes_per_s += load.bandwidth_bytes_per_s or 0.0
                latency_s = min(latency_s, math.inf if load.latency_s is None else load.latency_s)
        if speed_bytes_per_s == 0:
            return True
        others_s = own.waiting_bytes / speed_bytes_per_s + latency_s
        return others_s >= self._leave_factor * own.latency_s


@dataclasses.dataclass(frozen=True)
class SequentialOptions:
    """How many pages the one tier reads at the same time."""

    reads_at_once: int = 1

    def __post_init__(self) -> None:
        if self.reads_at_once < 1:
            raise ConfigError(f"reads_at_once {self.reads_at_once}, allowed: >= 1")


class Sequential:
    """One tier at a time: the first that holds a page, the next where it fails (naive)."""

    def __init__(self, options: SequentialOptions) -> None:
        self._reads_at_once = options.reads_at_once

    def choose_tiers(self, page: OpenPage, loads: Sequence[TierLoad]) -> TierChoice:
        return TierChoice(page.tiers & -page.tiers, "first_tier")

    def may_claim(self, tier: int, loads: Sequence[TierLoad]) -> bool:
        busy = {load.tier: load.reading for load in loads if load.reading}
        return busy.keys() <= {tier} and busy.get(tier, 0) < self._reads_at_once


@dataclasses.dataclass(frozen=True)
class FixedSplitOptions:
    """How many pages of each round go to tier 1, 2, …; without any, one page to each."""

    shares: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if any(share < 1 for share in self.shares) or len(self.shares) > MAX_TIERS:
            raise ConfigError(
                f"shares {list(self.shares)}, allowed: a whole number >= 1 for each of at most "
                f"{MAX_TIERS} tiers, or none"
            )


class FixedSplit:
    """Pages dealt out in turn, whatever happens then: what a preset split is worth (naive)."""

    def __init__(self, options: FixedSplitOptions) -> None:
        self._shares = options.shares

    def choose_tiers(self, page: OpenPage, loads: Sequence[TierLoad]) -> TierChoice:
        tiers = [tier for tier in range(1, MAX_TIERS + 1) if page.tiers >> tier & 1]
        hands = [tier for tier in tiers for _ in range(self._share(tier))]
        return TierChoice(1 << hands[page.number % len(hands)], "dealt_in_turn")

    def may_claim(self, tier: int, loads: Sequence[TierLoad]) -> bool:
        return True

    def _share(self, tier: int) -> int:
        return self._shares[tier - 1] if tier <= len(self._shares) else 1


READERS: PolicyRegistry[ReadPolicy] = PolicyRegistry(
    "reader",
    {
        "completion": PolicyEntry(Completion, CompletionOptions),
        "sequential": PolicyEntry(Sequential, SequentialOptions),
        "fixed_split": PolicyEntry(FixedSplit, FixedSplitOptions),
    },
    members=("choose_tiers", "may_claim"),
)
DEFAULT_READER = "completion"
