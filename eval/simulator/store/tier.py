"""One tier of the simulated store: what it is doing, what it takes for it, how fast it seems.

most urgent want ─ its next pages that the tier has and nobody reads ─▶ a lot ─▶ read, all of it
pages to write ──────────────────────────────── in turn with reads ──▶ a lot ─▶ written
"""

from __future__ import annotations

import heapq
from collections import deque
from random import Random

import msgspec
import numpy as np
import numpy.typing as npt

from bana.eval.simulator.store.page_map import IN_ARENA, PageIds, PageMap
from bana.eval.simulator.store.spec import StoreSpec, TierSpec
from bana.eval.simulator.store.want import Want
from bana.radix_global.reader.options import ReaderOptions
from bana.radix_global.tier_meter import TierMeter

READ = "read"
# What the daemon's reader remembers a tier's speed for.
MEMORY_S = ReaderOptions().memory_s


class Lot(msgspec.Struct, frozen=True):
    """Pages that the tier moves at once, and how long that takes."""

    ids: PageIds
    is_read: bool
    time_s: float


class Tier:
    """Reads or writes one lot at a time; `reading` are the pages that some tier reads now.

    O(log wants + pages of a want) a lot.
    """

    def __init__(
        self, place: int, spec: TierSpec, store: StoreSpec, page_bytes: int, rng: Random
    ) -> None:
        self.place = place
        self.lot: Lot | None = None
        self._bit = 1 << place
        self._page_s = page_bytes / (spec.bytes_per_s * store.speed)
        self._page_bytes = page_bytes
        self._latency_s = spec.latency_ms / 1e3
        self._jitter = spec.jitter
        self._lot_pages = store.lot_pages
        self._rng = rng
        self._meter = TierMeter(MEMORY_S)
        self._wants: list[tuple[float, int, Want]] = []
        self._to_write: deque[int] = deque()
        self._has_read = False

    def add(self, want: Want) -> None:
        """Read for it too."""
        heapq.heappush(self._wants, (want.due_s, want.number, want))

    def count_ahead(self, want: Want, pages: PageMap) -> float:
        """How many pages it may read for other wants that are due no later, and that this one does
        not want too.

        O(pages that these wants lack).
        """
        earlier = (w for due, _, w in self._wants if due <= want.due_s and not w.is_over)
        lacking = [w.missing for w in earlier]
        if not lacking:
            return 0.0
        others = np.setdiff1d(np.concatenate(lacking), want.ids)
        return pages.count_to_read(self.place, others)

    def write(self, ids: PageIds) -> None:
        """Write these in turn with reads."""
        self._to_write.extend(ids.tolist())

    def begin(self, pages: PageMap, reading: npt.NDArray[np.bool_], now_s: float) -> Lot | None:
        """The next lot, where there is one to move."""
        ids = self._claim_writes() if self._has_read else None
        is_read = False
        if ids is None:
            ids = self._claim_reads(pages, reading)
            is_read = ids is not None
        if ids is None:
            ids = self._claim_writes()
        if ids is None:
            return None
        self._has_read = is_read
        factor = self._rng.lognormvariate(0.0, self._jitter) if self._jitter else 1.0
        time_s = factor * (self._latency_s + ids.size * self._page_s)
        self.lot = Lot(ids, is_read, time_s)
        if is_read:
            self._meter.begin(now_s)
        return self.lot

    def end(self, now_s: float) -> Lot:
        """The lot is through."""
        lot = self.lot
        assert lot is not None
        self.lot = None
        if lot.is_read:
            self._meter.end(READ, lot.ids.size * self._page_bytes, now_s)
            first_s = lot.time_s - (lot.ids.size - 1) * self._page_s
            self._meter.note_latency(max(0.0, first_s), lot.time_s)
        return lot

    def measure_bytes_per_s(self, now_s: float) -> float:
        """As the daemon tells it: 0 before the first read."""
        return self._meter.bandwidth_bytes_per_s(now_s) or 0.0

    def measure_latency_s(self) -> float:
        """Until the first page of a lot is there."""
        return self._meter.latency_s or 0.0

    @property
    def true_bytes_per_s(self) -> float:
        """What whole lots are read with, one after the other."""
        lot_s = self._latency_s + self._lot_pages * self._page_s
        return self._lot_pages * self._page_bytes / lot_s

    @property
    def true_latency_s(self) -> float:
        """Until the first page of a lot is there."""
        return self._latency_s + self._page_s

    def _claim_reads(self, pages: PageMap, reading: npt.NDArray[np.bool_]) -> PageIds | None:
        while self._wants:
            want = self._wants[0][2]
            ids = want.missing
            masks = pages.masks[ids]
            can = ((masks & (self._bit | IN_ARENA)) == self._bit) & ~reading[ids]
            found: PageIds = ids[can][: self._lot_pages]
            if found.size and not want.is_over:
                return found
            # What it lacks others read already; nothing of that comes back.
            heapq.heappop(self._wants)
        return None

    def _claim_writes(self) -> PageIds | None:
        if not self._to_write:
            return None
        count = min(self._lot_pages, len(self._to_write))
        return np.array([self._to_write.popleft() for _ in range(count)], np.int64)
