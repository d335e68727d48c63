"""SGLang's scheduler as far as a pass goes: its own queue, admission, tree and pool, nothing else.

All pages of the pool are taken, so that a pass does all of its work and admits nobody: the next
one finds everything as it was.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from bana.slo.errors import BanaError
from sglang_bana.config import InstanceSpec
from sglang_bana.engine.scheduler import BanaScheduler
from sglang_bana.engine.scheduling.conductor import Conductor
from sglang_bana.engine.scheduling_stand import (
    CHUNK_TOKENS,
    DECODE_STEP,
    DECODING,
    PAGE,
    conduct,
    make_decoding,
)

POOL_PAGES = 256
ROWS = 64
ROW_TOKENS = 4_096


class PassHost(Scheduler):
    """What SGLang's scheduler holds while it decides; the parts that a pass goes by stand in."""

    device = "cpu"
    page_size = PAGE
    truncation_align_size: int | None = None
    tp_size = 1
    chunked_prefill_size: int | None = CHUNK_TOKENS
    max_prefill_tokens = CHUNK_TOKENS
    max_running_requests = 256
    max_total_num_tokens = 1_000_000
    max_queued_requests: int | None = None
    schedule_policy = "fcfs"
    processed_tokens_counter = 0
    max_prefill_bs = 0
    priority_scheduling_preemption_threshold = 0
    disaggregation_mode = DisaggregationMode.NULL
    spec_algorithm = SpeculativeAlgorithm.NONE
    prefill_decode_interval = prefill_decode_interval_min_bs = 0
    enable_hierarchical_cache = enable_hicache_storage = enable_lmcache = False
    enable_priority_scheduling = schedule_low_priority_values_first = False
    enable_priority_preemption = abort_on_priority_when_disabled = False
    enable_unified_cache_external_linker = enable_overlap = is_mixed_chunk = False
    enable_hisparse = enable_lora = is_hybrid_swa = require_mlp_sync = False
    _engine_paused = _event_loop_should_restart = False
    prefill_delayer = min_free_slots_delayer = external_corpus_manager = None
    dllm_config = truncation_align_size = dynamic_chunk_sizer = hisparse_coordinator = None
    scheduler_stage_metrics = idle_sleeper = rust_server = None
    chunked_req = _pending_chunked_abort_req = last_batch = None
    _prefill_decode_interval_remaining = 0

    def __init__(self, server_args: Any, port_args: Any) -> None:
        self.waiting_queue: list[Any] = []
        size = POOL_PAGES * PAGE
        pool = MHATokenToKVPool(
            size, PAGE, torch.float32, 1, 1, 1, "cpu", enable_memory_saver=False
        )
        allocator = PagedTokenToKVPoolAllocator(
            size, PAGE, torch.float32, "cpu", pool, need_sort=False
        )
        self.token_to_kv_pool_allocator = allocator
        self.req_to_token_pool = ReqToTokenPool(ROWS, ROW_TOKENS, "cpu", enable_memory_saver=False)
        self.tree_params = CacheInitParams(
            disable=False,
            req_to_token_pool=self.req_to_token_pool,
            token_to_kv_pool_allocator=allocator,
            page_size=PAGE,
            tree_components=(ComponentType.FULL,),
        )
        self.tree_cache = UnifiedRadixCache(self.tree_params)
        if allocator.alloc(size) is None:
            raise BanaError(f"a new pool of {size} tokens has not as many to give")
        self._stand_in()
        self.init_schedule_policy()

    def _stand_in(self) -> None:
        unchanged = SimpleNamespace(
            maybe_prepare_mlp_sync_batch=lambda batch, need_sync=None: batch,
            maybe_convert_decode_to_extend=lambda batch: batch,
            prepare_for_forward=lambda batch, chunked_req: batch,
        )
        self.dp_attn_adapter = self.ngram_embedding_manager = unchanged
        self.session_controller = SimpleNamespace(maybe_reap=lambda now_s: None)
        self.flush_wrapper = SimpleNamespace(check_pending=lambda: None)
        self.grammar_manager = SimpleNamespace(has_waiting_grammars=lambda: False, grammar_queue=[])
        self.beam_coordinator = SimpleNamespace(pending_member_rows=lambda batch: 0)
        self.new_token_ratio_tracker = SimpleNamespace(current=0.7)
        self.tp_worker = SimpleNamespace(model_runner=SimpleNamespace(attn_backend=None))


class HostedScheduler(BanaScheduler, PassHost):
    """bana's scheduler with nothing to serve, the default order, and steps it has learned from."""

    conductor: Conductor

    def __init__(self, spec: InstanceSpec) -> None:
        super().__init__(spec, None, None)
        self.spec = spec
        self.conductor = self.policy.conductor = conduct(self, spec.scheduling.order)
        self.running = SimpleNamespace(
            batch_is_full=False,
            is_prefill_only=True,
            is_empty=lambda: False,
            batch_size=lambda: DECODING,
            filter_batch=lambda: None,
            reqs=[make_decoding(index) for index in range(DECODING)],
        )

    def take_turn(self) -> None:
        """What the event loop does between two steps, when no message has come."""
        self.process_input_requests([])
        planned = self.get_next_batch_to_run(self.running, None)
        if planned.batch_to_run is not None or self.conductor.plan is None:
            raise BanaError("the pass admitted somebody, or planned no prompts: it timed less")

    def rewind(self, queue: list[Any]) -> None:
        """As it was before the last turn; decodes have had theirs, so the next is for prompts."""
        self.waiting_queue = list(queue)
        self.running.batch_is_full = False
        self.conductor.stepper.note_step(DECODE_STEP)
