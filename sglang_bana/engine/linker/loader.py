"""Brings pages that requests of one step wait for from the arena into the pool, layer by layer.

step ─ start ─▶ │ layer 0 │ layer 1 │ … │ last, after a look at the generations │
                     └─ forward, layer 0, as soon as that one is there
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sglang.srt.mem_cache.unified_cache.unified_cache_linker import LayerWiseLoadCounter

from bana.radix_global.link import Slot, StoreLink
from bana.slo.clock import Clock
from bana.slo.errors import StoreError
from sglang_bana.engine.linker.job_thread import JobThread
from sglang_bana.engine.linker.pages import PageCopy, PageMover

# SGLang waits for one step's loads before it starts the next.
MAX_BATCHES = 4
logger = logging.getLogger(__name__)


class LoadOutcome(StrEnum):
    """How a batch of loads ended."""

    LOADED = "loaded"
    MISSING = "missing"  # this rank has not got the pages, or not any more
    GONE = "gone"  # the arena is not mapped any more
    STALE = "stale"  # a slot was given to somebody else meanwhile
    LATE = "late"
    STOPPED = "stopped"
    FAULT = "fault"


@dataclass(frozen=True, eq=False)
class QueuedLoad:
    """One request's pages: `indices` are its token slots in the pool, page by page; `slots` None
    where this rank has not got them.
    """

    indices: Any
    slots: Sequence[Slot] | None


@dataclass(frozen=True, eq=False)
class LoadBatch:
    """What one step waits for under `index` of the counter. `ready` is done when the pool's slots
    may be written, None where they may be at once.
    """

    index: int
    loads: Sequence[QueuedLoad]
    deadline_s: float
    ready: Any


@dataclass(frozen=True, eq=False)
class StartedBatch:
    """A batch, and the round in which it may write into the pool."""

    batch: LoadBatch
    round: int


class Loader:
    """One thread that loads; the counter learns of each layer, and of any failure."""

    def __init__(
        self,
        store: StoreLink,
        mover: PageMover,
        counter: LayerWiseLoadCounter,
        page_tokens: int,
        clock: Clock,
    ) -> None:
        self._store = store
        self._mover = mover
        self._counter = counter
        self._page_tokens = page_tokens
        self._clock = clock
        self._thread = JobThread("bana-load-pages", self._work, MAX_BATCHES)
        self._copies: dict[int, PageCopy] = {}
        # A batch of an earlier round has nobody left to tell, nor a place to write to.
        self._round = 0

    def start(self, batch: LoadBatch) -> None:
        """Load it in the background; its failure is the counter's to tell."""
        started = StartedBatch(batch, self._round)
        if not self._thread.offer(started):
            self._fail(started, LoadOutcome.STOPPED)

    def fence(self, index: int, layer: int) -> None:
        """Called by the forward pass before it reads a layer that the counter has."""
        copy = self._copies.get(index)
        if copy is not None:
            copy.fence(layer)

    def forget(self, index: int) -> None:
        """The step is over."""
        self._copies.pop(index, None)

    def quiesce(self, timeout_s: float) -> bool:
        """Give up what is under way, within a layer; whether nothing writes into the pool now."""
        self._round += 1
        self._copies.clear()
        return self._thread.settle(timeout_s)

    def let_go(self) -> None:
        """The daemon is gone: hold nothing of its arena any longer."""
        self._thread.follow(self._mover.close)

    def close(self, timeout_s: float) -> None:
        """The end."""
        self._round += 1
        if self._thread.close(timeout_s):
            self._mover.close()

    def _work(self, job: StartedBatch | Callable[[], None]) -> None:
        if isinstance(job, StartedBatch):
            self._load(job)
        else:
            job()

    def _load(self, started: StartedBatch) -> None:
        try:
            outcome = self._copy(started)
        except Exception:
            logger.exception("bana: pages could not be loaded; their requests are recomputed")
            outcome = LoadOutcome.FAULT
        if outcome is not LoadOutcome.LOADED:
            self._fail(started, outcome)

    def _copy(self, started: StartedBatch) -> LoadOutcome:
        batch = started.batch
        if batch.ready is not None:
            batch.ready.synchronize()
        pages: list[int] = []
        slots: list[Slot] = []
        for load in batch.loads:
            if load.slots is None:
                return LoadOutcome.MISSING
            pages += list_pages(load.indices, self._page_tokens)
            slots += load.slots
        copy = self._mover.begin(self._store, pages, slots)
        if copy is None:
            return LoadOutcome.GONE
        self._copies[batch.index] = copy
        try:
            return self._copy_layers(started, copy, slots)
        finally:
            # Nothing may still be written once the counter has heard of the end.
            copy.finish()

    def _copy_layers(
        self, started: StartedBatch, copy: PageCopy, slots: Sequence[Slot]
    ) -> LoadOutcome:
        batch, last = started.batch, self._counter.num_layers - 1
        for layer in range(last + 1):
            if self._clock.now_s() > batch.deadline_s:
                return LoadOutcome.LATE
            if started.round == self._round:
                copy.load_layer(layer)
            if layer == last:
                copy.finish()
                if not all(map(self._store.is_valid, slots)):
                    return LoadOutcome.STALE
            if started.round != self._round:
                return LoadOutcome.STOPPED
            self._counter.complete(batch.index, layer)
        return LoadOutcome.LOADED

    def _fail(self, started: StartedBatch, outcome: LoadOutcome) -> None:
        if started.round == self._round:
            error = StoreError(f"pages not loaded: {outcome}")
            self._counter.fail(started.batch.index, error)


def list_pages(indices: Any, page_tokens: int) -> list[int]:
    """The pages of the pool that token slots, page after page, lie in."""
    return [int(index) // page_tokens for index in indices[::page_tokens].tolist()]
