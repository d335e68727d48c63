"""How the tiers fare: what the planner, the writer and operators are told."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class TierReport(msgspec.Struct, frozen=True):
    """One tier's reads, now and so far.

    `bandwidth_bytes_per_s` are verified bytes a second while busy, averaged over the last busy
    seconds (before the first has come, at most that); `latency_s` is that of one page, stalls cut.
    Both are None before the first read. The
    backlog is all pages that the tier may read next, those that others may read too included;
    `backlog_by_due` has its bytes by when they are due, in no order, where each tier has its share
    of what several may read.
    `outcomes` counts reads that came back by how they ended.
    """

    tier: int
    width: int
    bandwidth_bytes_per_s: float | None
    latency_s: float | None
    backlog_pages: int
    backlog_bytes: int
    reading_pages: int
    overdue_pages: int
    read_bytes: int
    outcomes: Mapping[str, int]
    backlog_by_due: tuple[tuple[float, int], ...] = ()
