"""One place that keeps pages, the arena or a tier: what it holds, and what may leave it next.

A leaf of a place is a page there with no child *there*; its children may well be elsewhere.
"""

from __future__ import annotations

import numpy as np

from bana.radix_global.columns import Column, Flags, PageColumns, Rows
from bana.radix_global.leaf_queue import LeafQueue
from bana.radix_global.pages import PlaceCount


class Place:
    """The books of place `number`, a bit in each page's mask.

    Every leaf is queued or parked. The queue may hold others too: what is no leaf any more is
    noticed when it comes to the front.
    """

    def __init__(self, number: int, pages: PageColumns) -> None:
        self._pages = pages
        self._bit = 1 << number
        self._children = Column(pages.rows, np.int32)
        self._leaves = LeafQueue(pages.rows, pages.stamp)
        self._held = 0
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """The size of all pages here."""
        return self._held_bytes

    def count(self) -> PlaceCount:
        """What is here."""
        return PlaceCount(self._held, self._held_bytes)

    def holds(self, row: int) -> bool:
        """Whether the page is here."""
        return bool(self._pages.mask.one[row] & self._bit)

    def arrive(self, rows: Rows) -> Flags:
        """The pages are here from now on; which of them were not before."""
        is_new: Flags = (self._pages.mask.many[rows] & self._bit) == 0
        arrived = rows[is_new]
        self._pages.mask.many[arrived] |= self._bit
        self._held += len(arrived)
        self._held_bytes += int(self._pages.size_bytes.many[arrived].sum(dtype=np.int64))
        # Pages whose parents are not known share the root.
        np.add.at(self._children.many, self._pages.parent.many[arrived], 1)
        for row in arrived[self._children.many[arrived] == 0].tolist():
            self._leaves.push(row)
        return is_new

    def leave(self, row: int) -> None:
        """The page is here no longer; its parent may be a leaf now."""
        self._pages.mask.one[row] &= ~self._bit
        self._held -= 1
        self._held_bytes -= self._pages.size_bytes.one[row]
        parent = self._pages.parent.one[row]
        self._children.one[parent] -= 1
        if self.holds(parent) and not self._children.one[parent]:
            self._leaves.push(parent)

    def move_child(self, row: int, before: int, after: int) -> None:
        """The page hangs from `after` and no longer from `before`."""
        if self.holds(row):
            self._children.one[before] -= 1
            self._children.one[after] += 1

    def next_to_go(self) -> int | None:
        """The least recently used leaf that is not leased, taken out of the queue."""
        while (row := self._leaves.pop()) is not None:
            if not self.holds(row) or self._children.one[row]:
                continue
            if not self._pages.leases.one[row]:
                return row
            self._pages.parked.one[row] |= self._bit
        return None

    def unpark(self, row: int) -> None:
        """The page's last lease has ended: it may go again."""
        if self._pages.parked.one[row] & self._bit:
            self._pages.parked.one[row] &= ~self._bit
            self._leaves.push(row)
