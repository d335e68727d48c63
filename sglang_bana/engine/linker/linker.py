"""SGLang's external linker over bana's store: it answers from what has arrived, and only copies.

lookup ── what of the prompt is in the arena ──▶ load ──▶ start ──▶ layers ──▶ finish
offload ─────────────────────────────────────────────────▶ saved behind the forward passes

Nothing here waits for the store, and nothing raises into SGLang: a method that did would end the
server. Only the scheduler's thread calls it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import (
    LayerWiseLoadCounter,
    UnifiedCacheLinker,
)

from bana.radix_global.keys import Namespace, page_key, page_keys
from bana.radix_global.link import LinkState, StoreLink
from bana.radix_global.pages import MAX_TIERS
from bana.radix_global.wire_parts import MAX_BATCH_PAGES
from bana.slo.clock import WaitingClock
from sglang_bana.engine.linker.counts import LinkerCounts
from sglang_bana.engine.linker.guard import answering
from sglang_bana.engine.linker.identity import move_epoch, renew_epoch
from sglang_bana.engine.linker.known_keys import KnownKeys
from sglang_bana.engine.linker.layout import PageLayout
from sglang_bana.engine.linker.limits import LinkerLimits
from sglang_bana.engine.linker.loader import LoadBatch, Loader, QueuedLoad
from sglang_bana.engine.linker.pages import PageMover
from sglang_bana.engine.linker.restore_desk import PageSize
from sglang_bana.engine.linker.saver import SaveJob, Saver, SaverSettings
from sglang_bana.engine.linker.wake import WakeBell
from sglang_bana.engine.linker.wanted import WantBook

# A wait for slots keeps pages locked.
SLOTS_S = 0.25
NO_PAGES: Sequence[int] = ()
logger = logging.getLogger(__name__)


class LinkerParts(msgspec.Struct, frozen=True, kw_only=True):
    """What a linker is made of. `bell` is rung when a page arrives or has been saved.

    `is_alone` says that no other rank has to decide alike. `pool_pages` is the pool's size.
    """

    store: StoreLink
    namespace: Namespace
    layout: PageLayout
    loading: PageMover
    saving: PageMover
    pool: Any
    pool_pages: int
    bell: WakeBell
    is_alone: bool
    clock: WaitingClock
    limits: LinkerLimits
    forward_stream: Any = None


class StoreLinker(UnifiedCacheLinker):
    """See SGLang's contract; where ranks have to agree, nothing that one sees alone decides."""

    def __init__(self, parts: LinkerParts) -> None:
        self.forward_stream = parts.forward_stream
        self.pools = {PoolName.KV: parts.pool}
        self.store = parts.store
        self.limits = parts.limits
        self.clock = parts.clock
        self.is_alone = parts.is_alone
        self.bell = parts.bell
        self.counts = LinkerCounts()
        self.layer_done_counter = LayerWiseLoadCounter(parts.layout.layers, self._fence)
        self._known = KnownKeys(parts.limits.known_pages)
        self.wants = WantBook(parts.store, parts.limits, self._known, self.counts)
        self.page_size = PageSize(parts.layout.page_tokens, parts.layout.page_bytes)
        self.ranks = parts.namespace.tp_size
        self._namespace = parts.namespace
        self._digest = parts.namespace.digest()
        self._is_renewed = False
        self._page_tokens = parts.layout.page_tokens
        self._on_device = str(parts.pool.device) != "cpu"
        self._most_locked = max(1, int(parts.pool_pages * parts.limits.locked_share))
        self._locked: deque[int] = deque()
        self._locked_pages = 0
        self._is_tainted = self._was_attached = False
        self._parent_hash: str | None = None
        self._queued: dict[str, QueuedLoad] = {}
        # By request, the number of what was announced for it.
        self._announced: dict[str, int] = {}
        self._loader = Loader(
            parts.store, parts.loading, self.layer_done_counter, self._page_tokens, parts.clock
        )
        self._saver = Saver(
            parts.store,
            parts.saving,
            self._known,
            self.counts,
            parts.clock,
            SaverSettings(
                layers=parts.layout.layers,
                page_tokens=self._page_tokens,
                lot_pages=parts.limits.lot_pages,
                patience_s=SLOTS_S,
                most_jobs=self._most_locked,
            ),
        )
        self._saver.wake = parts.bell.ring

    # What the scheduler's side tells

    @property
    def digest(self) -> bytes:
        """Of the namespace in which pages are looked for and saved now."""
        return self._digest

    def list_digests(self) -> tuple[bytes, ...]:
        """Of all ranks; none once new weights have given each a name that no other one knows."""
        if self.ranks == 1:
            return (self._digest,)
        if self._is_renewed:
            return ()
        namespaces = (
            msgspec.structs.replace(self._namespace, tp_rank=rank) for rank in range(self.ranks)
        )
        return tuple(namespace.digest() for namespace in namespaces)

    @property
    def is_resting(self) -> bool:
        """Whether nothing is saved until the tree has been emptied."""
        return self._is_tainted

    def note_parent(self, page_hash: str | None) -> None:
        """The hash of the page before the next offload's first, None at the start of a prompt."""
        self._parent_hash = page_hash

    @answering(None)
    def announce(self, rid: str, hashes: Sequence[str]) -> None:
        """This request's prompt is to be computed here for somebody else, who waits for its pages;
        said once a request.
        """
        if rid not in self._announced and hashes:
            keys = page_keys(self._digest, hashes[:MAX_BATCH_PAGES])
            self._announced[rid] = self.store.announce(keys)

    @answering(None)
    def withdraw(self, rid: str) -> None:
        """The request has ended: nothing more comes once what it computed has been published."""
        number = self._announced.pop(rid, None)
        if number is not None:
            self._saver.follow(lambda: self.store.withdraw(number))

    def change_weights(self) -> None:
        """The weights are about to change: nothing computed until now is looked for again."""
        self._is_renewed = True
        self._enter(renew_epoch(self._namespace))

    def change_adapters(self) -> None:
        """An adapter comes or goes: the same, but together with all that are told so."""
        self._enter(move_epoch(self._namespace))

    def _enter(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._digest = namespace.digest()
        self.wants.release_all()
        self._announced.clear()
        self._saver.abandon()
        self._known.clear()
        self.store.enter(self._namespace)
        self.counts.epochs += 1

    def rest(self) -> None:
        """Save nothing until the tree is emptied: it holds KV of weights that are gone."""
        if not self._is_tainted:
            logger.warning(
                "bana: the weights changed while their KV is still cached; nothing is saved in the "
                "store until the cache is flushed (POST /flush_cache)"
            )
        self._is_tainted = True

    def settle(self) -> None:
        """Return when nothing reads or writes the pool: its memory is about to be given away."""
        limit_s = self.limits.quiesce_s
        is_saved = self._saver.drain(limit_s)
        if not is_saved:
            # What is left need not be kept, but must not touch the pool again.
            self._saver.abandon()
            is_saved = self._saver.drain(limit_s)
        self._require_quiet(is_saved, self._loader.quiesce(limit_s))

    # Loading

    @answering(NO_PAGES)
    def lookup(self, rid: str, transfers: list[Any]) -> Sequence[int]:
        wanted = self.wants.find(rid)
        keys = transfers[0].keys if len(transfers) == 1 else None
        if wanted is None or not keys:
            return ()
        return range(1, 1 + min(wanted.count_ready(keys[0]), len(keys)))

    @answering(False)
    def load(self, rid: str, transfers: list[Any]) -> bool:
        """Ranks may have got different pages by now, so that with several of them the answer is
        True; a page that is not there is found out by the loader, and told to all.
        """
        (kv,) = transfers
        wanted = self.wants.find(rid)
        found = None if wanted is None else wanted.take(kv.keys[0], len(kv.keys))
        is_there = found is not None and all(map(self.store.is_valid, found.slots))
        if self.is_alone and not is_there:
            return False
        slots = found.slots if found is not None else None
        self._queued[rid] = QueuedLoad(kv.device_indices, slots)
        return True

    def count_origins(self, rid: str, page_hash: str, count: int) -> tuple[int, ...]:
        """How many of these restorable pages came from each place."""
        wanted = self.wants.find(rid)
        found = None if wanted is None else wanted.take(page_hash, count)
        origins = bytes(count) if found is None else found.origins
        return tuple(origins.count(place) for place in range(1 + MAX_TIERS))

    def start_layer_wise_loading(self) -> int:
        if not self._queued:
            return -1
        loads, self._queued = tuple(self._queued.values()), {}
        index = self.layer_done_counter.update_producer()
        ready = self._record_ready()
        deadline_s = self.clock.now_s() + self.limits.load_s
        self._loader.start(LoadBatch(index, loads, deadline_s, ready))
        return index

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        has_landed = self.layer_done_counter.finish(counter_index)
        self._loader.forget(counter_index)
        self.counts.failed_loads += not has_landed
        return has_landed

    def cancel_queued_load(self, rid: str) -> bool:
        return self._queued.pop(rid, None) is not None

    # Saving

    @answering(False)
    def offload(self, transfers: list[Any], session_id: str | None = None) -> bool:
        (kv,) = transfers
        parent, self._parent_hash = self._parent_hash, None
        pages = len(kv.keys)
        is_away = self.is_alone and self.store.state is not LinkState.ATTACHED
        is_full = 0 < self._locked_pages > self._most_locked - pages
        if self._is_tainted or is_away or is_full:
            self.counts.refused_saves += 1
            return False
        after = b"" if parent is None else page_key(self._digest, parent)
        events = self.record_offload_ready() if self._on_device else []
        job = SaveJob(after, page_keys(self._digest, kv.keys), kv.device_indices, events)
        if not self._saver.offer(job):
            return False
        self._locked.append(pages)
        self._locked_pages += pages
        return True

    def num_completed_offloads(self) -> int:
        self._follow_link()
        return self._saver.count_results()

    def pop_completed_offload(self) -> bool:
        self._locked_pages -= self._locked.popleft()
        return self._saver.take_result()

    # The end of a tree, and of everything

    @answering(None)
    def reset(self) -> None:
        """The tree was emptied; the store keeps what it has."""
        self._queued.clear()
        limit_s = self.limits.quiesce_s
        self._require_quiet(self._saver.quiesce(limit_s), self._loader.quiesce(limit_s))
        self._locked.clear()
        self._locked_pages = 0
        self._parent_hash = None
        self._is_tainted = False
        self.layer_done_counter.reset()

    @answering(None)
    def close(self) -> None:
        self.wants.release_all()
        self._loader.close(self.limits.quiesce_s)
        self._saver.close(self.limits.quiesce_s)
        self.store.close()

    def _require_quiet(self, *threads: bool) -> None:
        if not all(threads):
            logger.error(
                "bana: pages are still being copied %.0f s after they were to be left alone; none "
                "of them is kept",
                self.limits.quiesce_s,
            )

    def _follow_link(self) -> None:
        """Once a pass. An arena that is held after its daemon's end may leave the next one none."""
        is_attached = self.store.state is LinkState.ATTACHED
        if self._was_attached and not is_attached:
            self._loader.let_go()
            self._saver.let_go()
        self._was_attached = is_attached

    def _fence(self, index: int, layer: int) -> None:
        self._loader.fence(index, layer)

    def _record_ready(self) -> Any:
        """Done when the pool's slots may be written: what the current stream was given before."""
        if not self._on_device:
            return None
        event = torch.cuda.Event()
        event.record()
        return event
