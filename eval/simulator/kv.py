"""The KV cache of the instance, in pages: who holds what, and what must be evicted for it.

    capacity │ in the prefix cache: locked │ evictable │ private to a request │ free │

A request computes, or loads, into private pages. Whole pages of its prompt then enter the prefix
cache, where others find them; a page that somebody else computed meanwhile is freed.
"""

from __future__ import annotations

from collections.abc import Callable

from bana.eval.simulator.cache import PrefixCache
from bana.eval.simulator.jobs import Job
from bana.eval.simulator.prefixes import ROOT, PrefixPlan


class KvPool:
    """Counts pages, exactly; a taking that does not fit is a fault of the caller."""

    def __init__(
        self, capacity_pages: int, plan: PrefixPlan, on_change: Callable[[int], None]
    ) -> None:
        self.page_tokens = plan.page_tokens
        self._capacity_pages = capacity_pages
        self._pages = plan.pages
        self._is_cached = plan.is_cached
        self._cache = PrefixCache(plan, on_change)
        self.private_pages = 0

    @property
    def free_pages(self) -> int:
        """Pages that hold nothing."""
        return self._capacity_pages - self.private_pages - self._cache.resident_pages

    @property
    def available_pages(self) -> int:
        """Pages that hold nothing that is in use."""
        return self.free_pages + self._cache.evictable_pages

    def rematch(self, job: Job) -> None:
        """Find how much of a request is at hand now; its last token is always computed."""
        most = (job.target - 1) // self.page_tokens
        cached = min(self._cache.match(job.path), most)
        at_hand = cached
        if job.want is not None and cached >= job.want.first:
            at_hand = max(cached, min(job.want.first + job.want.arrived, most))
        job.matched = at_hand * self.page_tokens
        job.loaded = at_hand - cached

    def count_available(self, job: Job) -> int:
        """Pages that this request could take beside its cached prefix."""
        return self.available_pages - self._cache.count_unlocked(job.path)

    def start(self, job: Job) -> None:
        """Lock what is cached of a request; all that is at hand is done.

        What comes from the arena is to be taken with the pages of its first portion.
        """
        self.rematch(job)
        job.done = job.cached = job.matched
        job.tree_pages = job.done // self.page_tokens - job.loaded
        self._lock(job, job.tree_pages)

    def count_pages(self, before: int, tokens: int) -> int:
        """The pages that `tokens` more need after `before`."""
        return self._round_up(before + tokens) - self._round_up(before)

    def take(self, pages: int) -> None:
        """Make so many pages private, evicting what is needed for it."""
        short = pages - self.free_pages
        if short > 0:
            self._cache.evict(short)
        assert pages <= self.free_pages, "more KV pages taken than there are"
        self.private_pages += pages

    def publish(self, job: Job) -> None:
        """The whole prompt pages that a request has computed enter the prefix cache."""
        whole = min(job.done, job.prompt) // self.page_tokens
        if whole <= job.tree_pages or not self._is_cached:
            return
        self._lock(job, whole)
        left = whole
        for node in job.locked:
            self._cache.hold(node, left)
            left -= self._pages[node]
        self.private_pages -= whole - job.tree_pages
        job.tree_pages = whole

    def finish(self, job: Job, kv_tokens: int) -> None:
        """A request of `kv_tokens` is over: its whole pages stay cached, nobody uses them."""
        self.private_pages -= self._round_up(kv_tokens) - job.tree_pages
        tail = kv_tokens // self.page_tokens - job.tree_pages
        if self._is_cached and tail > 0:
            self._cache.append_tail(job.path[-1] if job.path else ROOT, tail)
        self._unlock(job)

    def drop(self, job: Job, kv_tokens: int) -> None:
        """Free what a request of `kv_tokens` holds alone; what it shares stays cached."""
        self.private_pages -= self._round_up(kv_tokens) - job.tree_pages
        self._unlock(job)
        job.done = 0

    def _lock(self, job: Job, pages: int) -> None:
        """Lock the nodes of the first `pages` that are not locked yet."""
        depth, start = 0, 0
        while start < pages:
            start += self._pages[job.path[depth]]
            depth += 1
        self._cache.lock(job.path[len(job.locked) : depth])
        job.locked = job.path[: max(depth, len(job.locked))]

    def _unlock(self, job: Job) -> None:
        self._cache.unlock(job.locked)
        job.locked = ()
        job.tree_pages = 0

    def _round_up(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)
