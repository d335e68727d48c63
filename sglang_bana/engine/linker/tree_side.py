"""Drives the linker from the tree's side, with what SGLang's own driver does not tell or keep.

SGLang hashes the rest of a prompt and reduces over all ranks each time it looks for a request's
prefix. Here hashes are kept while a request waits, and who wants nothing is not looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import Any

import torch
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import UnifiedCacheLinkerWrapper

from bana.radix_global.pages import ARENA
from sglang_bana.engine.linker.linker import StoreLinker
from sglang_bana.engine.linker.requests import is_restorable
from sglang_bana.engine.linker.wanted import Wanted
from sglang_bana.engine.stay import stay_of


class TreeLinker(UnifiedCacheLinkerWrapper):
    """SGLang's driver of a linker, for a `StoreLinker`.

    Of a request that has loaded, its stay tells the tokens by the place they came from, those
    that it had when it was admitted before included.
    """

    cache_linker: StoreLinker
    _matching: Wanted | None = None
    _inserting: Any = None

    def watch_inserts(self) -> None:
        """Learn whose KV enters the tree: not everybody's is for the store. Once, at the start."""
        checkpoint = self.cache.checkpoint

        def watched(req: Any, **kwargs: Any) -> Any:
            self._inserting = req
            try:
                return checkpoint(req, **kwargs)
            finally:
                self._inserting = None

        self.cache.checkpoint = watched

    def match(self, key: Any, req: Any, result: Any) -> Any:
        linker = self.cache_linker
        self.hit_markers.pop(req.rid, None)
        wanted = linker.wants.find(req.rid)
        # With other ranks, what has arrived here alone may not decide who takes part in the sum.
        is_empty = linker.is_alone and wanted is not None and not wanted.want.arrived_pages
        if wanted is None or is_empty:
            return result
        self._matching = wanted
        try:
            return super().match(key, req, result)
        finally:
            self._matching = None

    def _tail_hashes(self, key: Any, result: Any, device_hit_len: int) -> list[str]:
        assert self._matching is not None
        page = self.cache.page_size
        return list(self._matching.hashes[device_hit_len // page : len(key) // page])

    def _sync_restorable_prefix(
        self, restorable: Sequence[int], *, num_pages: int, device_hit_pages: int
    ) -> int:
        """What all ranks can restore. Of a `StoreLinker` that is every length up to one, so that
        ranks compare one number; SGLang marks each length in a tensor, which takes longer than
        all the rest of a look-up.
        """
        pages = len(restorable)
        if not self.cache_linker.is_alone:
            count = torch.tensor(pages, dtype=torch.int)
            self.cache._all_reduce_attn_groups(count, torch.distributed.ReduceOp.MIN)
            pages = int(count)
        return min(pages, num_pages) if pages > device_hit_pages else 0

    def load_back(self, req: Any) -> tuple[int, Any]:
        marker = self.hit_markers.get(req.rid)
        loaded, node = super().load_back(req)
        restored: tuple[int, ...] = ()
        if loaded and marker is not None:
            hashes = marker.tail_hashes
            pages = self.cache_linker.count_origins(req.rid, hashes[0], len(hashes))
            restored = tuple(count * self.cache.page_size for count in pages)
        before = stay_of(req).restored_before
        if before:
            restored = tuple(map(add, before, restored or (0,) * len(before)))
        stay_of(req).restored = restored
        # What came from a tier is storage to SGLang, the rest of a load the host's memory.
        req.storage_hit_length = sum(restored) - (restored[ARENA] if restored else 0)
        return loaded, node

    def _offload_node(self, node_id: Any, transfers: list[Any]) -> None:
        if self._inserting is not None and not is_restorable(self._inserting):
            return
        ancestors = self.cache.get_prefix_hash_values(node_id)
        self.cache_linker.note_parent(ancestors[-1] if ancestors else None)
        super()._offload_node(node_id, transfers)
