"""Which rows of a long column come first, without sorting it.

all rows ──partition──▶ the `count` smallest ──sort──▶ head
   O(n)                                  O(count log count)
"""

from __future__ import annotations

import numpy as np

from bana.slo.waiting import Floats, Integers


def pick_head(keys: Floats, sequence: Integers, rows: Integers, count: int) -> Integers:
    """The `count` of `rows` with the smallest keys, in order; equal keys by `sequence`.

    `keys` and `sequence` are whole columns. Fewer than `count` rows give all of them. Keys are
    never NaN.
    """
    if count < 1:
        return rows[:0]
    if count < rows.size:
        rows = rows[_find_smallest(keys[rows], sequence[rows], count)]
    ranked: Integers = rows[np.lexsort((sequence[rows], keys[rows]))]
    return ranked


def _find_smallest(keys: Floats, sequence: Integers, count: int) -> Integers:
    """The places of the `count` smallest, unordered; those that tie at the edge by `sequence`."""
    edge = np.partition(keys, count - 1)[count - 1]
    below = np.flatnonzero(keys < edge)
    level = np.flatnonzero(keys == edge)
    lacking = count - below.size
    if lacking < level.size:
        level = level[np.argpartition(sequence[level], lacking - 1)[:lacking]]
    return np.concatenate((below, level))
