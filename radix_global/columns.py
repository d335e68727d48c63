"""Fixed columns of small integers: what an index of millions of pages is made of.

An object a page would cost several times the memory, and a pass of the garbage collector each.

    row          1    2    3    4            0 is the root: parent of first pages, never resident
    key          k0   k1   k3   k9
    parent       0    1    2    2
    mask         011  011  010  001          a bit a place: arena, tier 1, …
    stamp        9    8    7    3            last use, unique
    children     1    2    0    0            known ones, wherever they are
    leases       1    1    1    0            on the page or any descendant
    parked       000  000  010  000          places where it came up for eviction while leased
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = 0
Rows = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Column:
    """One value a row, 0 at first: `many` for arrays of rows, `one` for a single row.

    Both are the same memory; `one` is several times faster there. Memory is taken from the system
    as rows come into use.
    """

    def __init__(self, rows: int, dtype: npt.DTypeLike) -> None:
        self.many: npt.NDArray[Any] = np.zeros(rows, dtype)
        self.one = self.many.data


class PageColumns:
    """What is known of each page, wherever it resides; drawn at the head of this file."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.parent = Column(rows, np.int32)
        self.children = Column(rows, np.int32)
        self.leases = Column(rows, np.int32)
        self.slot = Column(rows, np.int32)
        self.size_bytes = Column(rows, np.int32)
        self.stamp = Column(rows, np.int64)
        self.mask = Column(rows, np.uint8)
        self.parked = Column(rows, np.uint8)
