"""What the board keeps of pages, of reads under way, of reading threads and of tiers.

page   WAITING ──claimed──▶ IN A LOT ──▶ UNDER WAY ──▶ done (one outcome)
          ▲                    │            │
          └─ its thread stalls ┴─ overdue, ─┘
                                  or failed: another tier
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator

from bana.radix_global.pages import MAX_TIERS
from bana.radix_global.reader.lazy_heap import Key, LazyHeap
from bana.radix_global.reader.policies import TierLoad
from bana.radix_global.reader.report import TierReport
from bana.radix_global.reader.wanting import TierFailure
from bana.radix_global.tier_meter import TierMeter


@dataclasses.dataclass(eq=False, slots=True)
class WantedPage:
    """A page until its outcome.

    `slot` is the one that the next read of it goes into, None where the reads under way have all
    it brought. `chosen` is the mask of the tiers that may claim it, 0 while it does not wait.
    """

    key: bytes
    size_bytes: int
    number: int
    slot: int | None
    due_s: float
    position: int
    deadline_s: float
    holders: int
    tried: int = 0
    chosen: int = 0
    lane: Lane | None = None
    is_done: bool = False
    attempts: int = 0
    readings: list[Reading] = dataclasses.field(default_factory=list)
    failures: list[TierFailure] = dataclasses.field(default_factory=list)

    @property
    def rank(self) -> Key:
        """The order of reading; unique."""
        return (self.due_s, self.position, self.number)

    @property
    def expiry(self) -> Key:
        """The order of giving up; unique."""
        return (self.deadline_s, self.number)

    @property
    def untried(self) -> int:
        """The mask of the tiers that hold it and have not been tried."""
        return self.holders & ~self.tried


@dataclasses.dataclass(eq=False, slots=True)
class Reading:
    """One read under way into `slot`, which is its own until it comes back."""

    page: WantedPage
    lane: Lane
    slot: int
    begun_s: float
    is_overdue: bool = False

    @property
    def key(self) -> bytes:
        """Which page is read."""
        return self.page.key

    @property
    def size_bytes(self) -> int:
        """How long the page is."""
        return self.page.size_bytes


@dataclasses.dataclass(eq=False, slots=True)
class Lane:
    """One reading thread of a tier: its read under way, and the pages claimed for after it."""

    tier: int
    reading: Reading | None = None
    lot: deque[WantedPage] = dataclasses.field(default_factory=deque)

    def claimed(self) -> Iterator[WantedPage]:
        """The pages of the lot that are still this lane's, the next first."""
        return (page for page in self.lot if page.lane is self)


class TierState:
    """One tier: its lanes, the pages that it may claim, and what it was seen to do."""

    def __init__(self, tier: int, width: int, memory_s: float) -> None:
        self.tier = tier
        self.bit = 1 << tier
        self.lanes = [Lane(tier) for _ in range(width)]
        self.queue = LazyHeap(self._is_waiting)
        self.meter = TierMeter(memory_s)
        self.waiting_pages = 0
        self.waiting_bytes = 0
        # This tier's part of the same bytes, by when they are due: what several may read counts at
        # each of them for a share. As many entries as there are requests.
        self.due_bytes: dict[float, int] = {}
        self.only_here_bytes = 0
        self.overdue = 0

    def add_waiting(self, page: WantedPage) -> None:
        """The page may be claimed here."""
        self._count_waiting(page, 1)

    def remove_waiting(self, page: WantedPage) -> None:
        """The page may no longer be claimed here."""
        self._count_waiting(page, -1)

    def change_due(self, page: WantedPage, before_s: float) -> None:
        """A page that may be claimed here is due earlier than `before_s`, when it was."""
        share_bytes = _share_of(page)
        self._count_due(before_s, -share_bytes)
        self._count_due(page.due_s, share_bytes)

    def load(self, now_s: float) -> TierLoad:
        """What a policy is told."""
        return TierLoad(
            tier=self.tier,
            width=len(self.lanes),
            reading=self.meter.under_way - self.overdue,
            overdue=self.overdue,
            waiting_bytes=self.waiting_bytes,
            only_here_bytes=self.only_here_bytes,
            bandwidth_bytes_per_s=self.meter.bandwidth_bytes_per_s(now_s),
            latency_s=self.meter.recent_latency_s(now_s),
        )

    def report(self, now_s: float) -> TierReport:
        """What everybody else is told."""
        return TierReport(
            tier=self.tier,
            width=len(self.lanes),
            bandwidth_bytes_per_s=self.meter.bandwidth_bytes_per_s(now_s) or self._bound(now_s),
            latency_s=self.meter.latency_s,
            backlog_pages=self.waiting_pages,
            backlog_bytes=self.waiting_bytes,
            reading_pages=self.meter.under_way,
            overdue_pages=self.overdue,
            read_bytes=self.meter.moved_bytes,
            outcomes=self.meter.outcomes(),
            backlog_by_due=tuple(self.due_bytes.items()),
        )

    def _bound(self, now_s: float) -> float | None:
        """What the tier gives at most, of which nothing has come yet: a hanging one is not taken
        for one that costs nothing.
        """
        readings = [lane.reading for lane in self.lanes if lane.reading is not None]
        taken_s = now_s - min((reading.begun_s for reading in readings), default=now_s)
        return sum(reading.size_bytes for reading in readings) / taken_s if taken_s > 0 else None

    def _count_waiting(self, page: WantedPage, step: int) -> None:
        self.waiting_pages += step
        self.waiting_bytes += step * page.size_bytes
        self._count_due(page.due_s, step * _share_of(page))
        if page.chosen == self.bit:
            self.only_here_bytes += step * page.size_bytes

    def _count_due(self, due_s: float, size_bytes: int) -> None:
        left = self.due_bytes.get(due_s, 0) + size_bytes
        if left:
            self.due_bytes[due_s] = left
        else:
            del self.due_bytes[due_s]

    def _is_waiting(self, key: Key, page: WantedPage) -> bool:
        return bool(page.chosen & self.bit) and page.lane is None and page.rank == key


_TIERS_IN = tuple(
    tuple(tier for tier in range(1, MAX_TIERS + 1) if mask >> tier & 1)
    for mask in range(2 << MAX_TIERS)
)


def _share_of(page: WantedPage) -> int:
    """What each of the tiers that may claim it will have to read of the page, on average."""
    return page.size_bytes // len(tiers_in(page.chosen))


def tiers_in(mask: int) -> tuple[int, ...]:
    """The tiers of a mask of places, the lowest first."""
    return _TIERS_IN[mask]
