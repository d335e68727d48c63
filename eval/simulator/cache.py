"""The prefix cache: which pages of the workload's tree are held, locked or may be evicted.

A node holds its first `resident` pages. Whoever uses a node locks it and all above it. What nobody
locks is evicted from the leaves up, the node that was used longest ago first, as SGLang does.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from bana.eval.simulator.prefixes import ROOT, PrefixPlan


class PrefixCache:
    """Counts pages; who computes and frees them is `KvPool`'s affair.

    `on_change` is told each node of which more or less is resident now. O(1) a node, evictions
    O(log nodes).
    """

    def __init__(self, plan: PrefixPlan, on_change: Callable[[int], None]) -> None:
        self._parents = list(plan.parents)
        self._pages = list(plan.pages)
        self._resident = [0] * len(plan.pages)
        self._locks = [0] * len(plan.pages)
        self._children = [0] * len(plan.pages)
        self._used = [0] * len(plan.pages)
        self._locks[ROOT] = 1
        self._uses = 0
        self._idle: list[tuple[int, int]] = []
        self._on_change = on_change
        self.resident_pages = 0
        self.evictable_pages = 0

    def match(self, path: Sequence[int]) -> int:
        """How many leading pages of a path are resident. O(nodes)."""
        pages = 0
        for node in path:
            resident = self._resident[node]
            pages += resident
            if resident < self._pages[node]:
                break
        return pages

    def count_unlocked(self, path: Sequence[int]) -> int:
        """The resident pages of a path that locking it would keep from eviction."""
        return sum(self._resident[node] for node in path if not self._locks[node])

    def lock(self, path: Sequence[int]) -> None:
        """Keep these nodes; a path is locked from its first node on, and unlocked as a whole."""
        self._uses += 1
        for node in path:
            if not self._locks[node]:
                self.evictable_pages -= self._resident[node]
            self._locks[node] += 1
            self._used[node] = self._uses

    def unlock(self, path: Sequence[int]) -> None:
        """Undo a `lock` of the same path."""
        self._uses += 1
        for node in path:
            self._locks[node] -= 1
            self._used[node] = self._uses
            if not self._locks[node]:
                self.evictable_pages += self._resident[node]
                self._offer(node)

    def hold(self, node: int, pages: int) -> int:
        """The first `pages` of a locked node are resident; how many of them were not before."""
        assert self._locks[node], "only a locked node may grow"
        added = min(pages, self._pages[node]) - self._resident[node]
        if added <= 0:
            return 0
        if not self._resident[node]:
            self._children[self._parents[node]] += 1
        self._resident[node] += added
        self.resident_pages += added
        self._on_change(node)
        return added

    def append_tail(self, parent: int, pages: int) -> None:
        """Keep pages that no prompt begins with, below `parent`, until they are evicted."""
        node = len(self._pages)
        self._parents.append(parent)
        self._pages.append(pages)
        self._resident.append(pages)
        self._locks.append(0)
        self._children.append(0)
        self._children[parent] += 1
        self._uses += 1
        self._used.append(self._uses)
        self.resident_pages += pages
        self.evictable_pages += pages
        self._offer(node)

    def evict(self, pages: int) -> int:
        """Give up at least so many pages, where there are so many unlocked; how many it were."""
        freed = 0
        while freed < pages and self._idle:
            used, node = heapq.heappop(self._idle)
            if used == self._used[node] and self._is_idle(node):
                freed += self._drop(node)
        return freed

    def _drop(self, node: int) -> int:
        pages, parent = self._resident[node], self._parents[node]
        self._resident[node] = 0
        self.resident_pages -= pages
        self.evictable_pages -= pages
        self._children[parent] -= 1
        self._offer(parent)
        self._on_change(node)
        return pages

    def _offer(self, node: int) -> None:
        if self._is_idle(node):
            heapq.heappush(self._idle, (self._used[node], node))

    def _is_idle(self, node: int) -> bool:
        """Whether it may be evicted now: used by nobody, and nothing is held below it."""
        return not self._locks[node] and not self._children[node] and self._resident[node] > 0
