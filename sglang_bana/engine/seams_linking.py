"""What the store's linker, and the scheduler around it, override and use of SGLang."""

from __future__ import annotations

from sglang_bana.engine.linker.identity import CHANGING_FIELDS
from sglang_bana.engine.refusals import STORE_REFUSALS
from sglang_bana.engine.seam import Seam

_S = "sglang.srt.managers.scheduler:Scheduler"
_C = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"
_L = "sglang.srt.mem_cache.unified_cache.unified_cache_linker"
_W = f"{_L}:UnifiedCacheLinkerWrapper"
_N = f"{_L}:LayerWiseLoadCounter"
_B = "sglang.srt.managers.schedule_batch:ScheduleBatch"
_R = "sglang.srt.managers.schedule_batch:Req"
_O = "sglang.srt.managers.scheduler_components.output_streamer:SchedulerOutputStreamer"
_M = "sglang.srt.mem_cache.memory_pool:MHATokenToKVPool"

# How the linker is asked for, and which arguments tell one model's KV from another's.
LINKING_ARGUMENTS = (
    Seam(
        "sglang.srt.server_args:ServerArgs",
        fields=(
            *(refusal.field for refusal in STORE_REFUSALS),
            *CHANGING_FIELDS,
            "model_path",
            "revision",
            "lora_paths",
            "enable_unified_cache_external_linker",
            "unified_cache_external_linker_backend",
            "unified_cache_external_linker_config",
            "enable_cache_report",
        ),
    ),
    Seam(
        "sglang.srt.mem_cache.unified_cache.linker_config:UnifiedCacheLinkerConfig.from_dict",
        uses=("linker", "linker_module_path"),
    ),
)

_DRIVER = (
    Seam(
        "sglang.srt.mem_cache.unified_cache.linker_factory:create_unified_cache_linker",
        ("server_args", "params", "backend", "config", "components", "forward_stream"),
        uses=("dynamic", "linker_extra_config", "extra_config", "forward_stream"),
    ),
    Seam(
        "sglang.srt.mem_cache.registry:create_unified_radix_cache",
        uses=("init_cache_linker", "layer_done_counter", "register_layer_transfer_counter"),
    ),
    Seam(
        f"{_L}:UnifiedCacheLinker.__abstractmethods__",
        holds=(
            "lookup",
            "load",
            "start_layer_wise_loading",
            "finish_layer_wise_loading",
            "cancel_queued_load",
            "offload",
            "num_completed_offloads",
            "pop_completed_offload",
            "reset",
            "close",
        ),
    ),
    Seam(f"{_L}:UnifiedCacheLinker.record_offload_ready", ("self",), uses=("forward_stream",)),
    Seam(f"{_L}:ExternalCacheHitMarker._fields", holds=("tail_hashes", "device_hit_len")),
    Seam(f"{_N}.__init__", ("self", "num_layers", "on_layer_ready")),
    Seam(f"{_N}.update_producer", uses=("producer_index", "futures")),
    Seam(f"{_N}.complete", ("self", "index", "layer"), uses=("set_result",)),
    Seam(f"{_N}.fail", ("self", "index", "error"), uses=("set_exception", "done")),
    Seam(f"{_N}.wait_until", ("self", "threshold"), uses=("exception", "on_layer_ready")),
    Seam(f"{_N}.finish", ("self", "index"), uses=("exception",)),
    Seam(f"{_N}.reset", ("self",)),
    Seam(f"{_W}.__init__", ("self", "cache", "cache_linker"), uses=("write_through_threshold",)),
    Seam(
        f"{_W}.match",
        ("self", "key", "req", "result"),
        uses=("_tail_hashes", "lookup", "_sync_restorable_prefix", "hit_markers"),
    ),
    Seam(f"{_W}._tail_hashes", ("self", "key", "result", "device_hit_len")),
    Seam(
        f"{_W}._sync_restorable_prefix",
        ("self", "restorable", "num_pages", "device_hit_pages"),
        uses=("_all_reduce_attn_groups", "MIN"),
    ),
    Seam(
        f"{_W}.load_back",
        ("self", "req"),
        uses=("hit_markers", "load", "private_load_indices", "inflight_load_rids"),
    ),
    Seam(
        f"{_W}._offload_node",
        ("self", "node_id", "transfers"),
        uses=("offload", "inc_lock_ref", "mark_external_linker_offload_pending"),
    ),
    Seam(f"{_W}.offload_nodes", uses=("_offload_node",)),
    Seam(f"{_W}.finish_loads", uses=("finish_layer_wise_loading", "_all_reduce_attn_groups")),
    Seam(f"{_W}.release_request", ("self", "rid"), uses=("cancel_queued_load",)),
    Seam(f"{_W}.reset", ("self",), uses=("reset", "_release_pending_offloads")),
    Seam(
        "sglang.srt.mem_cache.unified_cache.components.full:"
        "FullComponent.build_external_linker_transfer",
        uses=("device_indices", "keys", "hash_value", "alloc"),
    ),
    Seam(
        "sglang.srt.mem_cache.hicache_storage:PoolTransfer",
        fields=("name", "device_indices", "keys"),
    ),
)

_TREE = (
    Seam(f"{_C}._finalize_match_result", uses=("linker", "match")),
    Seam(f"{_C}.init_load_back", uses=("has_hit", "load_back")),
    Seam(f"{_C}.load_back_is_cache_owned", uses=("linker",)),
    Seam(f"{_C}.prefix_device_indices", uses=("private_load_indices",)),
    Seam(
        f"{_C}.finish_external_linker_loads",
        ("self", "reqs"),
        uses=("finish_loads", "skip_radix_cache_insert", "discard_output_reason"),
    ),
    Seam(
        f"{_C}.check_hicache_events",
        uses=("num_completed_offloads", "take_completed_offloads", "commit_completed_offloads"),
    ),
    Seam(f"{_C}.ready_to_load_host_cache", uses=("start_layer_wise_loading",)),
    Seam(f"{_C}.get_prefix_hash_values", ("self", "node_id")),
    Seam(f"{_C}.total_size", ("self",)),
    Seam(f"{_C}.checkpoint", ("self", "req", "up_to")),
    Seam("sglang.srt.mem_cache.common:checkpoint_kv_cache", uses=("checkpoint", "extend_end")),
    Seam("sglang.srt.mem_cache.common:release_kv_cache", uses=("checkpoint", "refresh_fill_ids")),
    Seam(f"{_C}.release_aborted_request", uses=("release_request",)),
    Seam(f"{_C}.reset", ("self",), uses=("linker", "reset")),
    Seam("sglang.srt.mem_cache.utils:get_hash_str", ("token_ids", "prior_hash", "page_size")),
    Seam(
        "sglang.srt.mem_cache.utils:get_storage_hash_str",
        ("key", "prior_hash", "page_size"),
        uses=("extra_key", "cache_salt"),
    ),
    Seam(
        "sglang.srt.mem_cache.radix_cache:RadixKey.__init__",
        ("self", "token_ids", "extra_key", "limit", "cache_salt"),
    ),
    Seam("sglang.srt.mem_cache.radix_cache:RadixKey.page_aligned", ("self", "page_size")),
    Seam(
        "sglang.srt.mem_cache.common:_req_radix_key", uses=("extra_key", "cache_salt", "RadixKey")
    ),
    Seam(
        "sglang.srt.mem_cache.cache_init_params:CacheInitParams",
        fields=(
            "token_to_kv_pool_allocator",
            "page_size",
            "is_eagle",
            "mtp_draft_device_pools",
            "sidecar_draft_device_pools",
        ),
    ),
    Seam(f"{_M}._create_buffers_normal", uses=("k_buffer", "v_buffer", "page_size")),
    Seam(f"{_M}.is_quantized_kv_cache"),
)

_AROUND = (
    Seam(
        f"{_S}.run_batch",
        uses=("finish_external_linker_loads", "_pending_chunked_abort_req"),
    ),
    Seam(f"{_S}._get_new_batch_prefill_raw", uses=("ready_to_load_host_cache",)),
    Seam(f"{_S}.get_next_batch_to_run", uses=("filter_batch", "_process_hicache_events")),
    Seam(f"{_S}._prefetch_kvcache", ("self", "req", "storage_hit_end")),
    Seam(f"{_S}._add_request_to_queue", uses=("_prefetch_kvcache",)),
    Seam(f"{_S}.abort_request", uses=("collect_inflight_reqs", "to_finish")),
    Seam(f"{_S}.collect_inflight_reqs", ("self",)),
    Seam(f"{_S}.is_fully_idle", ("self", "for_health_check", "ignore_waiting")),
    Seam(f"{_S}.flush_cache", uses=("is_fully_idle", "tree_cache", "reset")),
    Seam(f"{_S}.init_idle_sleeper", uses=("IdleSleeper",)),
    Seam(
        "sglang.srt.managers.scheduler_components.idle_sleeper:IdleSleeper.__init__",
        uses=("poller", "Poller"),
    ),
    # Everything through which a scheduler's weights can change.
    Seam(
        f"{_S}.init_request_dispatcher",
        uses=(
            "UpdateWeightFromDiskReqInput",
            "UpdateWeightsFromDistributedReqInput",
            "UpdateWeightsFromTensorReqInput",
            "UpdateWeightsFromIPCReqInput",
            "BeginWeightUpdateReqInput",
            "EndWeightUpdateReqInput",
            "ReleaseMemoryOccupationReqInput",
            "ResumeMemoryOccupationReqInput",
            "CheckWeightsReqInput",
            "LoadLoRAAdapterReqInput",
            "LoadLoRAAdapterFromTensorsReqInput",
            "UnloadLoRAAdapterReqInput",
            "RpcReqInput",
        ),
    ),
    Seam("sglang.srt.managers.io_struct:CheckWeightsReqInput", fields=("action",)),
    Seam(
        f"{_B}.prepare_for_extend",
        uses=(
            "_cache_breakdown_computed",
            "cached_tokens_device",
            "storage_hit_length",
            "already_computed",
            "retracted_stain",
        ),
    ),
    Seam(f"{_B}.filter_batch", ("self", "reqs_to_exclude")),
    Seam(
        f"{_R}.__init__",
        uses=("discard_output_reason", "extra_key", "cache_salt", "retracted_stain"),
    ),
    Seam(f"{_R}._compute_max_prefix_len", ("self", "input_len")),
    Seam(f"{_R}.reset_for_retract", uses=("retracted_stain", "already_computed")),
    Seam(
        "sglang.srt.managers.scheduler_components.batch_result_processor:"
        "SchedulerBatchResultProcessor.process_batch_result_prefill",
        uses=(
            "inflight_middle_chunks",
            "discard_output_reason",
            "_apply_chunked_prefill_logprobs",
        ),
    ),
    Seam(f"{_O}.stream_output", ("self", "reqs", "return_logprob", "skip_req")),
    Seam(f"{_O}.get_cached_tokens_details", ("self", "req"), uses=("device", "host", "storage")),
)

LINKING = _DRIVER + _TREE + _AROUND
