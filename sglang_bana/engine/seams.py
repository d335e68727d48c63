"""Every path, signature and behaviour of SGLang that bana relies on, checked at start.

A seam is named by import path; what it must offer are parameters (in this order, others may
stand between), names its code uses (behaviour), or fields (records).
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from types import CodeType
from typing import Any, NoReturn

import msgspec

from bana.slo.errors import SeamError
from sglang_bana.engine.refusals import REFUSALS

SGLANG_VERSION = "0.5.23"
BANA_CPU = "bana_cpu"


class Role(StrEnum):
    """A process of an instance: each checks the seams that it uses."""

    MAIN = "main"
    SCHEDULER = "scheduler"


class Seam(msgspec.Struct, frozen=True):
    """One thing bana relies on: `path` is "module:attribute.attribute"."""

    path: str
    parameters: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()


_EVERYWHERE = (
    Seam("sglang.srt.plugins:load_plugins", uses=("apply_hooks",)),
    Seam("sglang.srt.platforms:current_platform"),
    Seam("sglang.srt.platforms.interface:SRTPlatform.get_default_attention_backend", ("self",)),
    Seam("sglang.srt.platforms.cpu:CpuDeviceMixin"),
    Seam("sglang.srt.platforms.device_mixin:PlatformEnum.OOT"),
    Seam("sglang.srt.layers.attention.attention_registry:register_attention_backend", ("name",)),
    Seam("sglang.srt.layers.attention.attention_registry:ATTENTION_BACKENDS"),
    Seam("sglang.srt.arg_groups.choices:add_attention_backend_choices"),
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

_ATTENTION = (
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

_SEAMS = {Role.MAIN: _EVERYWHERE + _MAIN, Role.SCHEDULER: _EVERYWHERE + _ATTENTION + _SCHEDULER}

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
        _check_seam(seam)


def check_version() -> None:
    """SeamError unless exactly the pinned SGLang is installed; imports nothing of it."""
    try:
        found = version("sglang")
    except PackageNotFoundError:
        found = "none"
    if found != SGLANG_VERSION:
        _fail("sglang", f"version {found}", f"version {SGLANG_VERSION}")


def check_scheduler_object(scheduler: Any) -> None:
    """SeamError at the first attribute that the built scheduler lacks."""
    for path in _SCHEDULER_ATTRIBUTES:
        found = scheduler
        for name in path.split("."):
            if not hasattr(found, name):
                _fail(f"scheduler.{path}", f"no attribute {name!r}", "that attribute")
            found = getattr(found, name)


def _check_seam(seam: Seam) -> None:
    target = _resolve(seam.path)
    if seam.parameters:
        _check_parameters(seam, target)
    missing = sorted({*seam.fields} - _fields_of(target))
    if missing:
        _fail(seam.path, f"no field {', '.join(missing)}", "the fields " + ", ".join(seam.fields))
    if seam.uses:
        used = set(_names_in(_code_of(seam, target)))
        absent = [name for name in seam.uses if name not in used]
        if absent:
            _fail(seam.path, f"it does not use {', '.join(absent)}", "code that does")


def _resolve(path: str) -> Any:
    module_name, _, attributes = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        _fail(path, f"its module does not import ({error})", "an importable module")
    for name in attributes.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            _fail(path, f"no attribute {name!r}", "that attribute")
    return found


def _check_parameters(seam: Seam, target: Any) -> None:
    try:
        names = list(inspect.signature(target).parameters)
    except (TypeError, ValueError) as error:
        _fail(seam.path, f"no signature ({error})", f"({', '.join(seam.parameters)})")
    rest = iter(names)
    if not all(name in rest for name in seam.parameters):
        _fail(seam.path, f"parameters ({', '.join(names)})", f"({', '.join(seam.parameters)})")


def _fields_of(target: Any) -> set[str]:
    """Fields of a record, whichever library made it; none of anything else."""
    names = set(getattr(target, "__struct_fields__", ()))
    if dataclasses.is_dataclass(target):
        names.update(field.name for field in dataclasses.fields(target))
    return names


def _code_of(seam: Seam, target: Any) -> CodeType:
    function: Any = target.fget if isinstance(target, property) else inspect.unwrap(target)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if not isinstance(code, CodeType):
        _fail(seam.path, f"a {type(target).__name__} without code", "a function in Python")
    return code


def _names_in(code: CodeType) -> Iterator[str]:
    """Names that a function's code mentions, its inner functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _fail(path: str, found: str, expected: str) -> NoReturn:
    raise SeamError(
        f"SGLang seam {path}: found {found}, expected {expected}. bana {_bana_version()} runs on "
        f"SGLang {SGLANG_VERSION} only: pip install sglang=={SGLANG_VERSION}"
    )


def _bana_version() -> str:
    return version("bana")
