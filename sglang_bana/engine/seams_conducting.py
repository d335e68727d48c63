"""What the scheduler class overrides and uses of SGLang's queue, and the warm-up of its server."""

from __future__ import annotations

from sglang_bana.engine.seam import Seam

_S = "sglang.srt.managers.scheduler:Scheduler"
_P = "sglang.srt.managers.schedule_policy"
_R = "sglang.srt.managers.schedule_batch:Req"
_T = "sglang.srt.managers.tokenizer_manager:TokenizerManager"

CONDUCTING = (
    Seam(
        f"{_S}.init_schedule_policy",
        ("self",),
        uses=("SchedulePolicy", "schedule_policy", "enable_hierarchical_cache"),
    ),
    Seam(f"{_P}:SchedulePolicy.__init__", ("self", "policy", "tree_cache")),
    Seam(
        f"{_P}:SchedulePolicy.calc_priority",
        ("self", "waiting_queue", "running_batch", "processed_tokens"),
    ),
    Seam(
        f"{_P}:SchedulePolicy.shortest_prefill_chunk_limit",
        ("self", "chunked_req", "waiting_queue", "budget", "page_size"),
    ),
    Seam(f"{_P}:PrefillAdder._select_prefill_admission", ("self", "req", "has_chunked_req")),
    Seam(f"{_P}:PrefillAdder.add_one_req", uses=("_select_prefill_admission", "has_chunked_req")),
    Seam(
        f"{_P}:PrefillAdder.add_chunked_req",
        ("self", "req"),
        uses=("chunked_req_limit", "can_run_list"),
    ),
    Seam(f"{_P}:PrefillAdder.budget_state", ("self",)),
    Seam("sglang.srt.mem_cache.prefill_budget:PrefillBudget.remaining_current"),
    Seam(f"{_P}:_PrefillAdmission", fields=("is_chunked",)),
    Seam(f"{_P}:AddReqResult.OTHER"),
    Seam(
        f"{_S}.get_next_batch_to_run",
        uses=(
            "process_pending_chunked_abort",
            "stash_chunked_request",
            "_should_defer_prefill",
            "get_new_batch_prefill",
            "update_running_batch",
        ),
    ),
    Seam(f"{_S}._should_defer_prefill", ("self", "running_batch")),
    Seam(
        f"{_S}.get_new_batch_prefill",
        uses=("_get_new_batch_prefill_raw", "prefill_delayer_single_pass", "running_batch"),
    ),
    Seam(
        f"{_S}._get_new_batch_prefill_raw",
        ("self", "prefill_delayer_single_pass", "running_batch"),
        uses=(
            "calc_priority",
            "chunked_prefill_size",
            "is_mixed_chunk",
            "get_prefill_adder_class",
            "shortest_prefill_chunk_limit",
            "batch_is_full",
            "is_hybrid_swa",
            "budget_state",
            "inflight_middle_chunks",
        ),
    ),
    Seam(f"{_S}.get_prefill_adder_class", ("self",)),
    Seam(f"{_S}.get_output_streamer_class", ("self",)),
    Seam(f"{_S}.init_output_streamer", uses=("get_output_streamer_class",)),
    Seam(
        "sglang.srt.managers.scheduler_components.output_streamer:"
        "SchedulerOutputStreamer.build_additional_customized_info",
        ("self", "reqs"),
    ),
    Seam(f"{_S}.update_running_batch", ("self", "batch"), uses=("check_decode_mem",)),
    Seam(
        f"{_S}._reqs_finishing_inflight",
        ("self", "batch"),
        uses=("enable_skip_finishing_decode", "result_queue"),
    ),
    Seam(f"{_S}.flush_cache", ("self", "empty_cache")),
    Seam(f"{_S}.run_batch", ("self", "batch")),
    Seam(f"{_S}.on_idle", ("self",)),
    Seam(
        f"{_S}._add_request_to_queue",
        ("self", "req", "is_retracted"),
        uses=("waiting_queue", "append"),
    ),
    Seam(f"{_S}._release_aborted_request", ("self", "req")),
    Seam(
        f"{_S}.abort_request",
        uses=("waiting_queue", "_release_aborted_request", "_pending_chunked_abort_req"),
    ),
    Seam(f"{_S}.process_pending_chunked_abort", uses=("release_kv_cache", "chunked_req")),
    Seam(f"{_S}.send_abort_output", ("self", "abort_req", "req")),
    Seam("sglang.srt.managers.scheduler:_make_abort_req", ("req", "finished_reason")),
    Seam(
        f"{_T}._handle_abort_finish_reason",
        uses=("status_code", "HTTPException"),
    ),
    Seam(f"{_S}._poll_timeout_aborts", ("self",)),
    Seam(f"{_S}.ingest_requests", uses=("_poll_timeout_aborts", "process_input_requests")),
    Seam(f"{_S}.process_input_requests", ("self", "recv_reqs")),
    Seam(
        f"{_R}.reset_for_retract",
        ("self",),
        uses=("is_retracted", "retraction_count", "inflight_middle_chunks", "lock"),
    ),
    Seam(
        f"{_R}.__init__",
        uses=(
            "return_logprob",
            "return_hidden_states",
            "session",
            "beam_group",
            "input_embeds",
            "positional_embed_overrides",
            "multimodal_inputs",
            "skip_radix_cache_insert",
        ),
    ),
    Seam(
        "sglang.srt.mem_cache.common:release_kv_cache",
        ("req", "tree_cache", "checkpoint"),
        uses=("unlock", "mark_kv_released"),
    ),
    Seam("sglang.srt.mem_cache.common:checkpoint_kv_cache", uses=("prefix_len", "extend_end")),
    Seam(
        "sglang.srt.mem_cache.common:match_kv_cache",
        ("req", "tree_cache"),
        uses=("num_matched_prefix_tokens",),
    ),
    Seam("sglang.srt.mem_cache.base_prefix_cache:BasePrefixCache.lock", ("self", "node")),
    Seam("sglang.srt.mem_cache.base_prefix_cache:BasePrefixCache.unlock", ("self", "lock")),
    Seam("sglang.srt.mem_cache.base_prefix_cache:TreeLock", fields=("node",)),
    Seam("sglang.srt.mem_cache.base_prefix_cache:BasePrefixCache.supports_mamba"),
    Seam("sglang.srt.mem_cache.base_prefix_cache:BasePrefixCache.supports_prefix_sharing"),
    Seam(
        "sglang.srt.managers.schedule_batch:ScheduleBatch",
        fields=("extend_lens", "prefix_lens", "batch_is_full"),
    ),
    Seam("sglang.srt.managers.schedule_batch:ScheduleBatch.check_decode_mem", ("self",)),
)

CALIBRATION = (
    Seam("sglang.srt.entrypoints.warmup:warmup", ("name",)),
    Seam(
        "sglang.srt.entrypoints.warmup:execute_warmups",
        ("disaggregation_mode", "warmup_names", "tokenizer_manager"),
    ),
    Seam("sglang.srt.entrypoints.http_server:lifespan", uses=("execute_warmups", "warmups")),
    Seam("sglang.srt.server_args:ServerArgs", fields=("warmups", "skip_server_warmup")),
    Seam("sglang.srt.managers.io_struct:GenerateReqInput", fields=("input_ids", "sampling_params")),
    Seam(f"{_T}.generate_request", ("self", "obj")),
    Seam(f"{_T}.init_model_config", uses=("context_len", "max_req_input_len")),
    Seam(f"{_T}.flush_cache", ("self",)),
)
