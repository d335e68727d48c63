"""A tier in this process's memory: bounded, least recently used pages given up first."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator

import msgspec

from bana.radix_global.stores.store import (
    HeldPage,
    Moment,
    PageOrigin,
    Payload,
    ReadOutcome,
    Refresh,
    RefreshOutcome,
    StoreStats,
    Write,
    WriteOutcome,
    check_key,
    view_bytes,
)
from bana.slo.clock import Clock
from bana.slo.errors import ConfigError

# The objects of a page and its entry in an ordered dict: counted, lest small pages be free.
PAGE_OVERHEAD_BYTES = 352


@dataclasses.dataclass(frozen=True)
class MemoryOptions:
    """How much memory the pages may take, with PAGE_OVERHEAD_BYTES for each."""

    capacity_bytes: int

    def __post_init__(self) -> None:
        if self.capacity_bytes <= PAGE_OVERHEAD_BYTES:
            raise ConfigError(
                f"capacity_bytes {self.capacity_bytes}, allowed: > {PAGE_OVERHEAD_BYTES}; give it "
                "room for at least one page"
            )


class MemoryPage(msgspec.Struct, frozen=True, gc=False):
    """One page's own copy, where it belongs, and when it came."""

    payload: bytes
    origin: PageOrigin
    came_s: float

    @property
    def counted_bytes(self) -> int:
        """What it takes of the capacity."""
        return len(self.payload) + PAGE_OVERHEAD_BYTES


class MemoryStore:
    """Pages as immutable copies, so that nothing can change between put and read. All O(1)."""

    def __init__(self, options: MemoryOptions, clock: Clock) -> None:
        self._clock = clock
        self._capacity_bytes = options.capacity_bytes
        self._pages: OrderedDict[bytes, MemoryPage] = OrderedDict()
        self._held_bytes = 0
        self._evicted_pages = 0
        self._is_closed = False
        self._lock = threading.Lock()

    def put(self, key: bytes, payload: Payload, origin: PageOrigin) -> Write:
        """See Store; a page larger than the capacity is REFUSED."""
        check_key(key)
        view = view_bytes(payload)
        if not 0 < view.nbytes <= self._capacity_bytes - PAGE_OVERHEAD_BYTES:
            return Write(WriteOutcome.REFUSED)
        if self.holds(key):
            return Write(WriteOutcome.PRESENT)
        page = MemoryPage(bytes(view), origin, self._clock.now_s())
        with self._lock:
            if self._is_closed:
                return Write(WriteOutcome.FAILED)
            if key in self._pages:
                return Write(WriteOutcome.PRESENT)
            self._pages[key] = page
            self._held_bytes += page.counted_bytes
            return Write(WriteOutcome.WRITTEN, self._evict())

    def read(self, key: bytes, target: memoryview) -> ReadOutcome:
        """See Store."""
        check_key(key)
        view = view_bytes(target)
        with self._lock:
            if self._is_closed:
                return ReadOutcome.FAILED
            page = self._pages.get(key)
            if page is None:
                return ReadOutcome.MISSING
            self._pages.move_to_end(key)
        if len(page.payload) != view.nbytes:
            return ReadOutcome.WRONG_LENGTH
        view[:] = page.payload
        return ReadOutcome.READ

    def holds(self, key: bytes) -> bool:
        """See Store."""
        with self._lock:
            return key in self._pages

    def pages(self) -> list[HeldPage]:
        """See Store; the next one to be given up first."""
        with self._lock:
            held = list(self._pages.items())
        return [_describe(key, page) for key, page in held]

    def pages_before(self, moment: Moment) -> list[HeldPage]:
        """See Store."""
        with self._lock:
            held = list(self._pages.items())
        return [_describe(key, page) for key, page in held if page.came_s < moment.clock_s]

    def drop(self, key: bytes) -> Write:
        """See Store."""
        check_key(key)
        with self._lock:
            if self._is_closed:
                return Write(WriteOutcome.FAILED)
            page = self._pages.pop(key, None)
            if page is None:
                return Write(WriteOutcome.MISSING)
            self._held_bytes -= page.counted_bytes
            return Write(WriteOutcome.DROPPED)

    def drop_many(self, keys: Collection[bytes]) -> Iterator[Write]:
        """See Store; one by one, which is cheap here."""
        for key in keys:
            outcome = self.drop(key).outcome
            if outcome is not WriteOutcome.MISSING:
                yield Write(outcome, (key,))

    def refresh(self) -> Refresh:
        """Nobody else writes here."""
        return Refresh(RefreshOutcome.FAILED if self._is_closed else RefreshOutcome.WHOLE)

    def stats(self) -> StoreStats:
        """See Store."""
        with self._lock:
            counts = {"evicted_pages": self._evicted_pages}
            return StoreStats(len(self._pages), self._held_bytes, self._capacity_bytes, counts)

    def close(self) -> None:
        """See Store."""
        with self._lock:
            self._is_closed = True
            self._pages.clear()
            self._held_bytes = 0

    def _evict(self) -> tuple[bytes, ...]:
        lost = []
        while self._held_bytes > self._capacity_bytes:
            key, page = self._pages.popitem(last=False)
            self._held_bytes -= page.counted_bytes
            lost.append(key)
        self._evicted_pages += len(lost)
        return tuple(lost)


def _describe(key: bytes, page: MemoryPage) -> HeldPage:
    return HeldPage(key, page.origin, len(page.payload))
