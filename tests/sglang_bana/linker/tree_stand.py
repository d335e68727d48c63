"""SGLang's own tree, pool and allocator with a linker behind them: no model, no server."""

from __future__ import annotations

import warnings
from array import array
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams, InsertParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.sampling.sampling_params import SamplingParams

from bana.radix_global.naive_store import NaiveStore
from bana.slo.fetching import ComputeView
from bana.slo.restore import RESTORES
from sglang_bana.engine.linker.limits import LinkerLimits
from sglang_bana.engine.linker.linker import LinkerParts, StoreLinker
from sglang_bana.engine.linker.pages import HostPages
from sglang_bana.engine.linker.pools import read_layout
from sglang_bana.engine.linker.restore_desk import RestoreDesk
from sglang_bana.engine.linker.restoring import Restorer
from sglang_bana.engine.linker.tree_side import TreeLinker
from sglang_bana.engine.linker.wake import WakeBell

from .stand import NAMESPACE, TestClock, wait_until

PAGE = 4
PAGES = 32
VOCABULARY = 1000


class TreeStand:
    """One engine's prefix cache; several may share a store."""

    def __init__(self, store: NaiveStore | None = None, *, is_alone: bool = True) -> None:
        size = PAGE * PAGES
        self.pool = MHATokenToKVPool(
            size, PAGE, torch.float32, 2, 8, 3, "cpu", enable_memory_saver=False
        )
        self.allocator = PagedTokenToKVPoolAllocator(
            size, PAGE, torch.float32, "cpu", self.pool, need_sort=False
        )
        rows = ReqToTokenPool(8, 256, "cpu", enable_memory_saver=False)
        self.params = CacheInitParams(
            disable=False,
            req_to_token_pool=rows,
            token_to_kv_pool_allocator=self.allocator,
            page_size=PAGE,
            tree_components=(ComponentType.FULL,),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.tree = UnifiedRadixCache(self.params)
        self.layout = layout = read_layout(self.pool, self.params, {ComponentType.FULL})
        bell = WakeBell()
        self.store = store or NaiveStore(64, layout.page_bytes, bell.ring)
        mover = HostPages(self.pool.k_buffer, self.pool.v_buffer, layout)
        self.linker = StoreLinker(
            LinkerParts(
                store=self.store,
                namespace=NAMESPACE,
                layout=layout,
                loading=mover,
                saving=mover,
                pool=self.pool,
                pool_pages=PAGES,
                bell=bell,
                is_alone=is_alone,
                clock=TestClock(),
                limits=LinkerLimits(),
            )
        )
        self.tree.init_cache_linker(self.linker)
        self.tree.linker = TreeLinker(self.tree, self.linker)
        self.tree.linker.watch_inserts()
        self.pool.register_layer_transfer_counter(self.linker.layer_done_counter)
        desk = RestoreDesk(
            RESTORES.create("planned"),
            0,
            self.linker.page_size,
            lambda: ComputeView(None, 0),
            lambda: self.store.tiers,
            self.linker.counts,
        )
        self.restorer = Restorer(self.linker, self.tree, desk)

    def compute(self, tokens: list[int], seed: int = 0, adapter: str | None = None) -> torch.Tensor:
        """Put the KV of a prompt into the tree; its token slots. Numbers are drawn by `seed`."""
        slots = self.allocator.alloc(len(tokens))
        assert slots is not None
        drawn = torch.Generator().manual_seed(seed)
        for buffer in (*self.pool.k_buffer, *self.pool.v_buffer):
            buffer[slots] = torch.randn(len(tokens), 2, 8, generator=drawn)
        self.tree.insert(InsertParams(key=RadixKey(array("q", tokens), adapter), value=slots))
        return slots

    def save_all(self) -> None:
        """Let everything that was offered be saved."""
        driver = self.tree.linker
        while driver.pending_offloads:
            wait_until(lambda: driver.num_completed_offloads() > 0)
            self.tree.check_hicache_events()

    def arrive(self, rid: str, tokens: list[int], adapter: str | None = None) -> Req:
        """A request that has asked for its pages, and has been matched."""
        params = SamplingParams(max_new_tokens=4)
        params.normalize(None)
        prompt = array("q", tokens)
        req = Req(rid, "", prompt, params, vocab_size=VOCABULARY, lora_id=adapter)
        self.restorer.arrive(req, due_s=1e9)
        return self.match(req)

    def match(self, req: Req) -> Req:
        req.init_next_round_input(self.tree)
        return req

    def load(self, req: Req) -> int:
        """What admission does for a host hit; tokens that are queued."""
        loaded, _ = self.tree.init_load_back(
            InitLoadBackParams(
                best_match_node=req.best_match_node, host_hit_length=req.host_hit_length, req=req
            )
        )
        req.prefix_len += loaded
        return int(loaded)

    def step(self, req: Req) -> list[Req]:
        """One forward pass that reads every layer; whose load failed."""
        self.linker.layer_done_counter.set_consumer(self.tree.ready_to_load_host_cache())
        for layer in range(3):
            self.pool.get_key_buffer(layer)
        return list(self.tree.finish_external_linker_loads([req]))

    def kv(self, slots: Any) -> torch.Tensor:
        """K and V of all layers at these slots."""
        buffers = (*self.pool.k_buffer, *self.pool.v_buffer)
        return torch.stack([buffer[slots] for buffer in buffers])
