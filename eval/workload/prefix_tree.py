"""How much of a sequence an unbounded prefix cache with pages of one unit has seen before.

A tree whose edges are arrays: an insertion compares each unit once and stores only what is new.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Units = NDArray[np.integer[Any]]


class _Node:
    __slots__ = ("children", "edge")

    def __init__(self, edge: Units) -> None:
        self.edge = edge
        self.children: dict[int, _Node] = {}


class PrefixTree:
    """Sequences of units (token ids, or bytes of text) that were seen."""

    def __init__(self) -> None:
        self._children: dict[int, _Node] = {}

    def insert(self, units: Units) -> int:
        """Add a sequence; how many of its leading units began an earlier one. O(length)."""
        children, at = self._children, 0
        while at < len(units):
            key = int(units[at])
            child = children.get(key)
            if child is None:
                children[key] = _Node(units[at:].copy())
                break
            same = _count_common(child.edge, units[at:])
            if same < len(child.edge):
                children[key] = child = _split(child, same)
            children = child.children
            at += same
        return at


def _split(node: _Node, at: int) -> _Node:
    above = _Node(node.edge[:at])
    node.edge = node.edge[at:]
    above.children[int(node.edge[0])] = node
    return above


def _count_common(one: Units, other: Units) -> int:
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    first = int(differs.argmax())
    return first if differs[first] else length
