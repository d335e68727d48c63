"""Which pages the prompts of a workload share: one tree of all of them, built ahead.

           ┌─ node 2 ─ node 4     a path is a prompt's whole pages; a node is a stretch of pages
    root ──┤                      that the same prompts begin with
           └─ node 3

All prompts are known before a run, so that each run only has to note how much of each node is in
its cache. No page is compared twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from bana.eval.requests import Offered
from bana.eval.workload.content import read_units
from bana.eval.workload.prefix_tree import Units

ROOT = 0


class PrefixPlan(msgspec.Struct, frozen=True):
    """The tree, nodes by number, `ROOT` (which has no pages, and itself as parent) first.

    `paths[i]` are the nodes of the i-th prompt from the root on, without the root. `shared` tells
    the nodes that several prompts have. `is_cached` is false where the engine caches no prefixes,
    and all paths are empty.
    """

    page_tokens: int
    parents: tuple[int, ...]
    pages: tuple[int, ...]
    shared: tuple[bool, ...]
    paths: tuple[tuple[int, ...], ...]
    is_cached: bool = True


def plan_prefixes(requests: Sequence[Offered], page_tokens: int) -> PrefixPlan:
    """The shared pages of these prompts, in their order. O(prompt tokens).

    Text has as many bytes a page as its tokens have on average.
    """
    prompts = [read_units(request.prompt) for request in requests]
    tokens = sum(request.prompt_tokens for request in requests)
    width = max(1, round(page_tokens * sum(map(len, prompts)) / max(1, tokens)))
    tree = _Tree(width)
    leaves = []
    for request, units in zip(requests, prompts, strict=True):
        pages = min(request.prompt_tokens // page_tokens, len(units) // width)
        leaves.append(tree.insert(units[: pages * width]))
    return tree.describe(leaves, page_tokens)


def plan_nothing(requests: Sequence[Offered], page_tokens: int) -> PrefixPlan:
    """The plan of an engine that caches no prefixes."""
    return PrefixPlan(page_tokens, (ROOT,), (0,), (True,), ((),) * len(requests), is_cached=False)


class _Node:
    __slots__ = ("children", "edge", "number", "parent", "passes")

    def __init__(self, number: int, parent: _Node | None, edge: Units) -> None:
        self.number = number
        self.parent = parent
        self.edge = edge
        self.passes = 0
        self.children: dict[bytes, _Node] = {}


class _Tree:
    """A radix tree of pages of `width` units; no prompt ends or parts inside a node."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._root = _Node(ROOT, None, np.empty(0, dtype=np.int32))
        self._nodes = [self._root]

    def insert(self, units: Units) -> _Node:
        """Add the whole pages of a prompt; the node that they end with."""
        node, at = self._root, 0
        while at < len(units):
            child = node.children.get(self._key(units[at:]))
            if child is None:
                node = self._link(node, units[at:])
            else:
                node = self._cut(child, _count_common(child.edge, units[at:]))
            node.passes += 1
            at += len(node.edge)
        return node

    def describe(self, leaves: Sequence[_Node], page_tokens: int) -> PrefixPlan:
        return PrefixPlan(
            page_tokens=page_tokens,
            parents=tuple(n.parent.number if n.parent is not None else ROOT for n in self._nodes),
            pages=tuple(len(n.edge) // self._width for n in self._nodes),
            shared=tuple(n.passes > 1 or n is self._root for n in self._nodes),
            paths=tuple(_trace(leaf) for leaf in leaves),
        )

    def _cut(self, node: _Node, common: int) -> _Node:
        """The part of `node` that ends with the last page within `common` units."""
        at = common // self._width * self._width
        parent = node.parent
        if at == len(node.edge) or parent is None:
            return node
        above = self._link(parent, node.edge[:at])
        above.passes = node.passes
        node.edge, node.parent = node.edge[at:], above
        above.children[self._key(node.edge)] = node
        return above

    def _link(self, parent: _Node, edge: Units) -> _Node:
        node = _Node(len(self._nodes), parent, edge)
        self._nodes.append(node)
        parent.children[self._key(edge)] = node
        return node

    def _key(self, units: Units) -> bytes:
        return units[: self._width].tobytes()


def _count_common(one: Units, other: Units) -> int:
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    first = int(differs.argmax())
    return first if differs[first] else length


def _trace(leaf: _Node) -> tuple[int, ...]:
    path = []
    node = leaf
    while node.parent is not None:
        path.append(node.number)
        node = node.parent
    return tuple(reversed(path))
