"""KV in pages and a prefix tree over them, with every page, row and lock accounted for.

row of a request   [ tree's pages │ own pages ]      a page has one owner: pool, tree or request
                   0 … protected  … allocated
"""

from __future__ import annotations

from array import array
from itertools import count
from typing import Any

from sglang.srt.mem_cache.allocator.base import BaseTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, EvictResult, MatchResult, TreeLock


class FakePool(BaseTokenToKVPoolAllocator):
    """Pages by number. SGLang's own rules of capacity, eviction and reservation stand on it."""

    def __init__(self, pages: int, page_size: int) -> None:
        self.size = pages * page_size
        self.page_size = page_size
        self.free_numbers = set(range(pages))

    def available_size(self) -> int:
        return len(self.free_numbers) * self.page_size

    def alloc(self, need_size: int) -> list[int]:
        assert need_size <= len(self.free_numbers), "out of memory"
        taken = sorted(self.free_numbers)[:need_size]
        self.free_numbers.difference_update(taken)
        return taken

    def free(self, free_index: list[int]) -> None:
        assert not self.free_numbers & set(free_index), "freed twice"
        self.free_numbers.update(free_index)

    def clear(self) -> None:
        self.free_numbers = set(range(self.size // self.page_size))


class FakeRows:
    """As many requests as can run at once."""

    device = "cpu"

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.taken: dict[int, list[int]] = {}

    def available_size(self) -> int:
        return self.rows - len(self.taken)

    def take(self) -> int:
        number = next(n for n in range(self.rows) if n not in self.taken)
        self.taken[number] = []
        return number

    def free(self, req: Any) -> None:
        del self.taken[req.kv.req_pool_idx]
        req.kv.req_pool_idx = None

    def clear(self) -> None:
        self.taken.clear()


class Node:
    """One page of the tree."""

    def __init__(self, parent: Node | None, key: tuple[int, ...], page: int) -> None:
        self.parent = parent
        self.key = key
        self.page = page
        self.children: dict[tuple[int, ...], Node] = {}
        self.locks = 0
        self.used = 0

    def path(self) -> list[Node]:
        """From the first page to this one; nothing for the root."""
        pages, node = [], self
        while node.parent is not None:
            pages.append(node)
            node = node.parent
        return pages[::-1]


class FakeTree:
    """A prefix tree of whole pages; a locked node keeps itself and all before it."""

    disable = False
    buffer_pipeline = None
    storage_prefetch_retries = None

    def __init__(self, pool: FakePool, rows: FakeRows) -> None:
        self.token_to_kv_pool_allocator = pool
        self.req_to_token_pool = rows
        self.page_size = pool.page_size
        self.root = Node(None, (), -1)
        self.locks: list[TreeLock] = []
        self._evictable: set[Node] = set()
        self._ticks = count(1)

    def supports_prefix_sharing(self) -> bool:
        return True

    def supports_mamba(self) -> bool:
        return False

    def supports_fast_match_prefix(self) -> bool:
        return False

    def swa_reprefill_tail_tokens(self, req: Any) -> int:
        return 0

    def claim_kv_row(self, req: Any) -> bool:
        return False

    def nodes(self) -> list[Node]:
        """Every page of the tree."""
        found, left = [], [*self.root.children.values()]
        while left:
            found.append(left.pop())
            left.extend(found[-1].children.values())
        return found

    def match_prefix(self, params: Any) -> MatchResult:
        node = self.root
        for key in _cut(params.key.raw_token_ids(), self.page_size):
            if key not in node.children:
                break
            node = node.children[key]
            node.used = next(self._ticks)
        return MatchResult(len(node.path()) * self.page_size, node, node, node)

    def total_size(self) -> tuple[int, int]:
        return len(self.nodes()) * self.page_size, 0

    def touch_prefix(self, key: Any) -> None:
        """Recency is kept by matching alone."""

    def lock(self, node: Node) -> TreeLock:
        for each in node.path():
            each.locks += 1
            self._evictable.discard(each)
        lock = TreeLock(node, receipt=None)
        self.locks.append(lock)
        return lock

    def unlock(self, lock: TreeLock | None) -> None:
        if lock is None:
            return
        (found,) = [i for i, held in enumerate(self.locks) if held is lock]
        del self.locks[found]
        for each in lock.node.path():
            assert each.locks > 0
            each.locks -= 1
            if not each.locks:
                self._evictable.add(each)

    def checkpoint(self, req: Any, *, up_to: int) -> None:
        """The tree takes over the whole pages of `[0, up_to)`; a copy it has already is freed."""
        row, node = self.req_to_token_pool.taken[req.kv.req_pool_idx], self.root
        for index, key in enumerate(_cut(req.full_untruncated_fill_ids[:up_to], self.page_size)):
            known = node.children.get(key)
            if known is None:
                known = node.children[key] = Node(node, key, row[index])
                self._evictable.add(known)
            elif known.page != row[index]:
                assert index * self.page_size >= req.kv.cache_protected_len
                self.token_to_kv_pool_allocator.free([row[index]])
                row[index] = known.page
            node = known
            node.used = next(self._ticks)
        req.kv.cache_protected_len = len(node.path()) * self.page_size
        self.unlock(req.lock)
        req.lock = self.lock(node)
        req.last_node = node

    def free_kv_row(self, kv: Any, ranges: list[tuple[int, int]]) -> None:
        row = self.req_to_token_pool.taken[kv.req_pool_idx]
        for start, end in ranges:
            assert start % self.page_size == 0
            pages = row[start // self.page_size : -(-end // self.page_size)]
            self.token_to_kv_pool_allocator.free(pages)

    def evictable_size(self) -> int:
        return len(self._evictable) * self.page_size

    def evict(self, params: EvictParams) -> EvictResult:
        """Pages that nothing locks, those used least recently first."""
        evicted = 0
        while evicted < params.num_tokens:
            leaves = [node for node in self._evictable if not node.children]
            if not leaves:
                break
            oldest = min(leaves, key=lambda node: node.used)
            assert oldest.parent is not None
            del oldest.parent.children[oldest.key]
            self._evictable.remove(oldest)
            self.token_to_kv_pool_allocator.free([oldest.page])
            evicted += self.page_size
        return EvictResult(evicted)

    evict_for_alloc = evict

    def reset(self) -> None:
        assert not self.locks, "reset under a lock"
        self.root = Node(None, (), -1)
        self._evictable.clear()

    def finish(self, handle: Any, outcome: Any) -> None:
        """Nothing is fetched for an attempt."""

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        """Nothing but pages is kept."""

    def discard_storage_prefetch_accounting(self, handle: Any) -> None:
        """There is no storage."""

    def finish_storage_prefetch_admission(self, handle: Any, **kwargs: Any) -> None:
        """There is no storage."""

    def available_and_evictable_str(self) -> str:
        return f"{self.token_to_kv_pool_allocator.available_size()} free"

    def pretty_print(self) -> None:
        """Only SGLang's last words ask for it."""


def _cut(tokens: array[int], page_size: int) -> list[tuple[int, ...]]:
    whole = len(tokens) // page_size
    return [tuple(tokens[i * page_size : (i + 1) * page_size]) for i in range(whole)]
