"""Every path, signature and behaviour of SGLang that bana relies on, checked at start.

What a seam must offer is told by `seam.Seam`.
"""

from __future__ import annotations

from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from sglang_bana.engine.refusals import REFUSALS
from sglang_bana.engine.seam import SGLANG_VERSION, Seam, check_seam, fail
from sglang_bana.engine.seams_conducting import CALIBRATION, CONDUCTING
from sglang_bana.engine.seams_linking import LINKING, LINKING_ARGUMENTS

BANA_CPU = "bana_cpu"


class Role(StrEnum):
    """A process of an instance: each checks the seams that it uses."""

    MAIN = "main"
    SCHEDULER = "scheduler"


_EVERYWHERE = (
    Seam("sglang.srt.plugins:load_plugins", uses=("apply_hooks",)),
    Seam("sglang.srt.platforms:current_platform"),
    Seam("sglang.srt.platforms.interface:SRTPlatform.get_default_attention_backend", ("self",)),
    Seam("sglang.srt.platforms.cpu:CpuDeviceMixin"),
    Seam("sglang.srt.platforms.device_mixin:PlatformEnum.OOT"),
    Seam("sglang.srt.layers.attention.attention_registry:register_attention_backend", ("name",)),
    Seam(
        "sglang.srt.layers.attention.attention_registry:ATTENTION_BACKENDS", holds=("torch_native",)
    ),
    Seam("sglang.srt.arg_groups.choices:ATTENTION_BACKEND_CHOICES", holds=("torch_native",)),
    Seam("sglang.srt.arg_groups.choices:add_attention_backend_choices"),
)

# Under which ids SGLang knows a request: by them the front door aborts it, and finds what it left.
_IDENTITY = (
    Seam("sglang.srt.managers.io_struct:GenerateReqInput", fields=("rid",)),
    Seam("sglang.srt.managers.io_struct:EmbeddingReqInput", fields=("rid",)),
    Seam(
        "sglang.srt.managers.io_struct:GenerateReqInput._normalize_rid",
        ("self", "num"),
        uses=("rid", "_"),
    ),
    Seam(
        "sglang.srt.entrypoints.openai.protocol:ResponsesRequest",
        fields=("request_id", "previous_response_id"),
    ),
    Seam(
        "sglang.srt.entrypoints.openai.protocol:ResponsesResponse.from_request",
        ("request",),
        uses=("id", "request_id"),
    ),
    Seam(
        "sglang.srt.entrypoints.openai.serving_responses:OpenAIServingResponses.create_responses",
        ("self", "request"),
        uses=("rid", "request_id"),
    ),
    # `/v1/messages` has no field for an id; it goes through the chat handler, and in a header.
    Seam(
        "sglang.srt.entrypoints.anthropic.serving:AnthropicServing._handle_streaming",
        uses=("_convert_to_internal_request",),
    ),
    Seam(
        "sglang.srt.entrypoints.anthropic.serving:AnthropicServing._handle_non_streaming",
        uses=("_convert_to_internal_request",),
    ),
    Seam(
        "sglang.srt.entrypoints.openai.serving_chat:OpenAIServingChat._convert_to_internal_request",
        ("self", "request", "raw_request"),
        uses=("SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES", "apply_header_overrides"),
    ),
    Seam(
        "sglang.srt.entrypoints.request_headers:apply_header_overrides",
        ("obj", "headers"),
        uses=("_HEADER_OVERRIDES",),
    ),
    Seam(
        "sglang.srt.entrypoints.request_headers:_HEADER_OVERRIDES",
        holds=("x-override-rid",),
    ),
)

_MAIN = (
    Seam(
        "sglang.srt.server_args:ServerArgs",
        fields=(
            *(refusal.field for refusal in REFUSALS),
            "attention_backend",
            "prefill_attention_backend",
            "decode_attention_backend",
            "speculative_algorithm",
        ),
    ),
    Seam("sglang.srt.server_args:prepare_server_args", ("argv",)),
    Seam(
        "sglang.srt.entrypoints.http_server:launch_server",
        ("server_args", "run_scheduler_process_func"),
        uses=("_launch_subprocesses",),
    ),
    Seam(
        "sglang.srt.entrypoints.engine:Engine._launch_scheduler_processes",
        ("server_args", "port_args", "run_scheduler_process_func"),
        uses=("Process",),
    ),
    Seam("sglang.srt.entrypoints.engine:_set_envs_and_config", uses=("set_start_method",)),
    Seam("sglang.srt.entrypoints.engine:Engine._launch_subprocesses", uses=("SubprocessWatchdog",)),
    Seam("sglang.srt.utils:kill_process_tree", ("parent_pid", "include_parent")),
    # How an instance notices that a client has left.
    Seam(
        "sglang.srt.entrypoints.http_server:serve_generate_request",
        uses=("SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES",),
    ),
    Seam("sglang.srt.environ:Envs.SGLANG_REQUEST_STATE_WAIT_TIMEOUT"),
)

# Where requests are checked, and that none gets past that place.
_REQUEST_CHECKS = (
    Seam("sglang.srt.plugins.hook_registry:HookRegistry.register", ("target", "hook", "hook_type")),
    Seam("sglang.srt.plugins.hook_registry:HookType.BEFORE"),
    Seam(
        "sglang.srt.managers.tokenizer_manager:TokenizerManager._validate_one_request",
        ("self", "obj", "input_ids"),
    ),
    # Where a header tells of a hand-off what the body has no place for.
    Seam(
        "sglang.srt.managers.tokenizer_manager:TokenizerManager._init_req_state",
        ("self", "obj", "request"),
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager:TokenizerManager.generate_request",
        ("self", "obj", "request"),
        uses=("_init_req_state", "normalize_batch_and_arguments"),
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager:TokenizerManager._tokenize_one_request",
        ("self", "obj"),
        uses=("_validate_one_request", "contains_mm_input", "mm_processor"),
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager:TokenizerManager._batch_tokenize_and_process",
        uses=("_validate_one_request", "_tokenize_one_request"),
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager:TokenizerManager._create_tokenized_object",
        uses=("model_config", "vocab_size", "sampling_params"),
    ),
    Seam("sglang.srt.managers.io_struct:GenerateReqInput", fields=("input_ids", "sampling_params")),
    Seam(
        "sglang.srt.managers.io_struct:EmbeddingReqInput", fields=("input_ids", "sampling_params")
    ),
    Seam(
        "sglang.srt.configs.model_config:ModelConfig._derive_model_shapes",
        uses=("vocab_size", "hf_text_config"),
    ),
    Seam(
        "sglang.srt.multimodal.processors.base_processor:MultimodalSpecialTokens",
        fields=("image_token_id", "video_token_id", "audio_token_id"),
    ),
)

_ATTENTION = (
    Seam("sglang.srt.layers.radix_attention:AttentionType.DECODER"),
    Seam("sglang.srt.layers.radix_attention:AttentionType.ENCODER_ONLY"),
    Seam(
        "sglang.srt.layers.attention.base_attn_backend:AttentionBackend.forward",
        ("self", "q", "k", "v", "layer", "forward_batch", "save_kv_cache", "kwargs"),
        uses=("forward_extend", "forward_decode"),
    ),
    Seam(
        "sglang.srt.layers.radix_attention:RadixAttention.__init__",
        uses=(
            "tp_q_head_num",
            "tp_k_head_num",
            "qk_head_dim",
            "v_head_dim",
            "scaling",
            "layer_id",
            "logit_cap",
            "sliding_window_size",
            "is_cross_attention",
            "attn_type",
            "use_irope",
            "xai_temperature_len",
        ),
    ),
    Seam(
        "sglang.srt.model_executor.forward_batch_info:ForwardBatch",
        fields=(
            "forward_mode",
            "req_pool_indices",
            "seq_lens",
            "out_cache_loc",
            "extend_prefix_lens",
            "extend_seq_lens",
        ),
    ),
    Seam(
        "sglang.srt.mem_cache.memory_pool:MHATokenToKVPool.set_kv_buffer",
        ("self", "layer", "loc_info", "cache_k", "cache_v"),
    ),
    Seam(
        "sglang.srt.mem_cache.memory_pool:KVWriteLoc", ("loc", "swa_loc"), fields=("loc", "swa_loc")
    ),
    Seam(
        "sglang.srt.mem_cache.memory_pool:MHATokenToKVPool.__init__",
        uses=("kv_cache_layout", "nhd"),
    ),
    Seam("sglang.srt.mem_cache.memory_pool:HybridLinearKVPool.__init__", uses=("full_kv_pool",)),
    Seam(
        "sglang.srt.mem_cache.memory_pool:HybridLinearKVPool.set_kv_buffer",
        ("self", "layer", "loc_info", "cache_k", "cache_v"),
    ),
    Seam(
        "sglang.srt.mem_cache.memory_pool:HybridLinearKVPool.get_key_buffer",
        ("self", "layer_id"),
        uses=("_wait_for_layer",),
    ),
    Seam(
        "sglang.srt.mem_cache.memory_pool:HybridLinearKVPool.get_value_buffer",
        ("self", "layer_id"),
        uses=("_wait_for_layer",),
    ),
    # The getters are what waits until a layer's KV has been loaded.
    Seam(
        "sglang.srt.mem_cache.memory_pool:MHATokenToKVPool.get_key_buffer",
        ("self", "layer_id"),
        uses=("wait_until",),
    ),
    Seam(
        "sglang.srt.mem_cache.memory_pool:MHATokenToKVPool.get_value_buffer",
        ("self", "layer_id"),
        uses=("wait_until",),
    ),
)

_SCHEDULER = (
    Seam(
        "sglang.srt.managers.scheduler:run_scheduler_process",
        ("server_args", "port_args", "gpu_id", "tp_rank", "pp_rank", "dp_rank", "pipe_writer"),
        uses=("Scheduler", "run_event_loop"),
    ),
    Seam("sglang.srt.managers.scheduler:Scheduler.__init__", ("self", "server_args", "port_args")),
    Seam(
        "sglang.srt.managers.scheduler:Scheduler.get_next_batch_to_run",
        ("self", "running_batch", "last_batch"),
    ),
    Seam(
        "sglang.srt.managers.scheduler:Scheduler.process_batch_result",
        ("self", "batch", "result"),
    ),
    Seam(
        "sglang.srt.managers.scheduler:Scheduler.event_loop_normal",
        uses=("ingest_requests", "get_next_batch_to_run", "process_batch_result"),
    ),
    Seam(
        "sglang.srt.managers.scheduler:Scheduler.event_loop_overlap",
        uses=("ingest_requests", "get_next_batch_to_run", "process_batch_result"),
    ),
    Seam(
        "sglang.srt.managers.schedule_batch:NextBatchPlan",
        fields=("batch_to_run", "running_batch"),
    ),
    Seam(
        "sglang.srt.managers.schedule_batch:ScheduleBatch",
        fields=("reqs", "forward_mode", "extend_num_tokens", "decoding_reqs"),
    ),
    Seam(
        "sglang.srt.managers.schedule_batch:ScheduleBatch.copy",
        uses=("reqs", "forward_mode"),
    ),
    Seam(
        "sglang.srt.managers.schedule_batch:ScheduleBatch.mix_with_running",
        uses=("extend_num_tokens",),
    ),
    Seam("sglang.srt.model_executor.forward_batch_info:ForwardMode.is_extend"),
    Seam("sglang.srt.model_executor.forward_batch_info:ForwardMode.is_extend_without_speculative"),
    Seam("sglang.srt.model_executor.forward_batch_info:ForwardMode.is_decode"),
    Seam("sglang.srt.model_executor.forward_batch_info:ForwardMode.is_target_verify"),
    Seam("sglang.srt.managers.load_snapshot:shm_path_for", ("ipc_name",)),
    Seam("sglang.srt.utils.stale_shm_cleanup:make_shm_name", ("kind",), uses=("getpid",)),
    Seam("sglang.srt.managers.scheduler:Scheduler.init_ipc_channels", ("self", "port_args")),
    Seam(
        "sglang.srt.managers.load_snapshot:create_load_snapshot_writer",
        uses=("shm_path_for", "instance_id"),
    ),
    Seam("sglang.srt.managers.schedule_batch:Req.seqlen"),
    Seam("sglang.srt.managers.schedule_batch:Req.__init__", uses=("num_matched_prefix_tokens",)),
    Seam("sglang.srt.managers.schedule_batch:Req.extend_len", uses=("extend_end", "prefix_len")),
    Seam(
        "sglang.srt.managers.utils:GenerationBatchResult.get_num_generated_tokens",
        ("self", "batch_size"),
    ),
)

_SEAMS = {
    Role.MAIN: (
        _EVERYWHERE + _MAIN + _IDENTITY + _REQUEST_CHECKS + CALIBRATION + LINKING_ARGUMENTS
    ),
    Role.SCHEDULER: _EVERYWHERE + _ATTENTION + _SCHEDULER + CONDUCTING + LINKING,
}

# Attributes of the built scheduler that its load and its proof are read from.
_SCHEDULER_ATTRIBUTES = (
    "waiting_queue",
    "running_batch.reqs",
    "chunked_req",
    "grammar_manager.grammar_queue",
    "pool_stats_observer.get_pool_stats",
    "pool_stats_observer.max_total_num_tokens",
    "tp_worker.model_runner.attn_backend",
    "tp_worker.model_runner.prefill_attention_backend_str",
    "tp_worker.model_runner.decode_attention_backend_str",
    "tp_size",
    "page_size",
    "device",
)


def check_seams(role: Role) -> None:
    """SeamError at the first seam of `role` that is missing or different."""
    check_version()
    for seam in _SEAMS[role]:
        check_seam(seam)


def check_version() -> None:
    """SeamError unless exactly the pinned SGLang is installed; imports nothing of it."""
    try:
        found = version("sglang")
    except PackageNotFoundError:
        found = "none"
    if found != SGLANG_VERSION:
        fail("sglang", f"version {found}", f"version {SGLANG_VERSION}")


def check_scheduler_object(scheduler: Any) -> None:
    """SeamError at the first attribute that the built scheduler lacks."""
    for path in _SCHEDULER_ATTRIBUTES:
        found = scheduler
        for name in path.split("."):
            if not hasattr(found, name):
                fail(f"scheduler.{path}", f"no attribute {name!r}", "that attribute")
            found = getattr(found, name)
