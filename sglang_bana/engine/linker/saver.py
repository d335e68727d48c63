"""Brings pages that were computed here into the store, after the steps that computed them.

node of the tree, locked ── offer ─▶ known? ─▶ slots ─▶ copy ─▶ publish ─▶ result: unlocked
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from bana.radix_global.keys import split_keys
from bana.radix_global.link import LinkState, Slot, StoreLink
from bana.slo.clock import WaitingClock
from sglang_bana.engine.linker.counts import LinkerCounts
from sglang_bana.engine.linker.job_thread import JobThread
from sglang_bana.engine.linker.known_keys import KnownKeys
from sglang_bana.engine.linker.loader import list_pages
from sglang_bana.engine.linker.pages import PageCopy, PageMover

POLL_S = 0.005
logger = logging.getLogger(__name__)


class SaverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`layers` of a page are copied, `lot_pages` pages at a time. A job waits `patience_s` in all
    for slots; `most_jobs` wait for their turn.
    """

    layers: int
    page_tokens: int
    lot_pages: int
    patience_s: float
    most_jobs: int


@dataclass(frozen=True, eq=False)
class SaveJob:
    """One piece of a prefix: `keys` of its pages, `after` that of the page before, empty at the
    start. `indices` are its token slots in the pool, written once each of `ready` is done.
    """

    after: bytes
    keys: bytes
    indices: Any
    ready: Sequence[Any]


@dataclass(frozen=True, eq=False)
class Offered:
    """A job with the round that it may publish in, and the life in which its result counts."""

    job: SaveJob
    round: int
    life: int


class Saver:
    """One thread that saves, in order; results come in the same order, one a job.

    `wake` is called from the thread after each result.
    """

    def __init__(
        self,
        store: StoreLink,
        mover: PageMover,
        known: KnownKeys,
        counts: LinkerCounts,
        clock: WaitingClock,
        settings: SaverSettings,
    ) -> None:
        self._store = store
        self._mover = mover
        self._known = known
        self._counts = counts
        self._clock = clock
        self._settings = settings
        self.wake: Callable[[], None] = lambda: None
        self._thread = JobThread("bana-save-pages", self._work, settings.most_jobs)
        self._results: deque[bool] = deque()
        # Pages are published in the round of their job only: later ones may have other weights,
        # or other pages in the same place of the pool.
        self._round = self._life = 0
        self._gate = threading.Lock()

    def offer(self, job: SaveJob) -> bool:
        """Whether there will be a result for it."""
        return self._thread.offer(Offered(job, self._round, self._life))

    def follow(self, action: Callable[[], None]) -> None:
        """Do this, which neither raises nor waits, once all has ended that was offered before.

        Such actions, at most one a request, take no job's place: whether a job is taken must not
        depend on what one rank alone has to do.
        """
        if not self._thread.follow(action):
            action()

    def let_go(self) -> None:
        """The daemon is gone: hold nothing of its arena any longer."""
        self._thread.follow(self._mover.close)

    def count_results(self) -> int:
        """How many jobs have ended whose results were not taken."""
        return len(self._results)

    def take_result(self) -> bool:
        """Whether all pages of the oldest of them are in the store."""
        return self._results.popleft()

    def abandon(self) -> None:
        """Publish nothing that was offered until now; its results will be failures."""
        with self._gate:
            self._round += 1

    def drain(self, timeout_s: float) -> bool:
        """Whether everything that was offered has ended within `timeout_s`."""
        return self._thread.settle(timeout_s)

    def quiesce(self, timeout_s: float) -> bool:
        """Forget everything that was offered; whether nothing reads the pool any more."""
        with self._gate:
            self._round += 1
            self._life += 1
            self._results.clear()
        return self._thread.settle(timeout_s)

    def close(self, timeout_s: float) -> None:
        """The end."""
        self.abandon()
        if self._thread.close(timeout_s):
            self._mover.close()

    def _work(self, offered: Offered | Callable[[], None]) -> None:
        if not isinstance(offered, Offered):
            offered()
            return
        is_saved = False
        try:
            is_saved = self._save(offered)
        except Exception:
            logger.exception("bana: pages could not be saved; others have to compute them")
        self._counts.failed_saves += not is_saved
        with self._gate:
            if offered.life == self._life:
                self._results.append(is_saved)
        self.wake()

    def _save(self, offered: Offered) -> bool:
        job = offered.job
        for event in job.ready:
            event.synchronize()
        keys = split_keys(job.keys)
        pages = list_pages(job.indices, self._settings.page_tokens)
        end_s = self._clock.now_s() + self._settings.patience_s
        begin = 0
        while (lot := self._find_lot(keys, begin)) is not None:
            slots = self._take_slots(offered, len(lot), end_s)
            if not slots:
                return False
            lot = lot[: len(slots)]
            if not self._copy([pages[i] for i in lot], slots):
                return False
            after = keys[lot[0] - 1] if lot[0] else job.after
            if not self._publish(offered, after, [keys[i] for i in lot], slots):
                return False
            begin = lot.stop
        return True

    def _find_lot(self, keys: Sequence[bytes], begin: int) -> range | None:
        """The next pages in a row that the store does not have."""
        while begin < len(keys) and keys[begin] in self._known:
            self._counts.known_pages += 1
            begin += 1
        end = begin
        while end < min(len(keys), begin + self._settings.lot_pages) and (
            end == begin or keys[end] not in self._known
        ):
            end += 1
        return range(begin, end) if end > begin else None

    def _take_slots(self, offered: Offered, most: int, end_s: float) -> Sequence[Slot]:
        """Up to `most` slots, as many as there are when there are any; none when time is up."""
        while offered.round == self._round and self._store.state is LinkState.ATTACHED:
            wanted = most
            while wanted:
                slots = self._store.take_slots(wanted)
                if slots is not None:
                    return slots
                wanted //= 2
            if self._clock.now_s() >= end_s:
                break
            self._clock.sleep(POLL_S)
        return ()

    def _copy(self, pages: Sequence[int], slots: Sequence[Slot]) -> bool:
        """Whether the pages are in the slots; the store has the slots back where they are not."""
        is_made = False
        try:
            copy = self._mover.begin(self._store, pages, slots)
            if copy is not None:
                self._copy_layers(copy)
                is_made = True
        finally:
            if not is_made:
                self._store.give_back(slots)
        return is_made

    def _copy_layers(self, copy: PageCopy) -> None:
        try:
            for layer in range(self._settings.layers):
                copy.save_layer(layer)
        finally:
            copy.finish()

    def _publish(
        self, offered: Offered, after: bytes, keys: Sequence[bytes], slots: Sequence[Slot]
    ) -> bool:
        """Whether the pages are the store's now; their round may be over."""
        with self._gate:
            if offered.round != self._round:
                self._store.give_back(slots)
                return False
            self._store.publish(after, b"".join(keys), slots)
        self._known.add(keys)
        self._counts.saved_pages += len(keys)
        return True
