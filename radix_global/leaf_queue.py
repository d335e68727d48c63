"""Rows by their last use, the least recent first, where most uses go by without telling the queue.

A use only writes the row's stamp. An entry keeps the stamp it was pushed with, which is never later
than the row's own; it is pushed again with that one when it comes to the front. So a use costs
O(1), and at most one O(log rows) later.
"""

from __future__ import annotations

import heapq

import numpy as np

from bana.radix_global.columns import Column

ROW_BITS = 32
ROW_MASK = (1 << ROW_BITS) - 1


class LeafQueue:
    """A heap of rows, each at most once; `stamps` holds the last use of each row, all different."""

    def __init__(self, rows: int, stamps: Column) -> None:
        self._stamps = stamps.one
        self._is_queued = Column(rows, np.bool_).one
        self._heap: list[int] = []

    def push(self, row: int) -> None:
        """Queue a row unless it is queued."""
        if not self._is_queued[row]:
            self._is_queued[row] = True
            heapq.heappush(self._heap, self._stamps[row] << ROW_BITS | row)

    def pop(self) -> int | None:
        """Take the least recently used row out; None where there is none."""
        while self._heap:
            entry = self._heap[0]
            row = entry & ROW_MASK
            stamp = self._stamps[row]
            if entry >> ROW_BITS == stamp:
                heapq.heappop(self._heap)
                self._is_queued[row] = False
                return row
            heapq.heapreplace(self._heap, stamp << ROW_BITS | row)
        return None
