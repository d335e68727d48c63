"""SGLang flags that an instance of bana cannot honour, each with its reason.

Judged on the parsed arguments, so that a flag, an alias and SGLang's own `--config` file are
all caught.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec

from bana.slo.errors import ConfigError


def _is_set(value: Any) -> bool:
    return value is not None and value is not False and value not in ("", [], ())


def _is_above_one(value: Any) -> bool:
    return value is not None and value > 1


def _is_not_null(value: Any) -> bool:
    return value != "null"


class Refusal(msgspec.Struct, frozen=True):
    """One field of ServerArgs, when it is refused, and why."""

    field: str
    is_refused: Callable[[Any], bool]
    reason: str


_OWN_ENTRY = (
    "SGLang would start another server than the one that bana installs itself into; leave it out"
)
_ONE_REPLICA = (
    "an instance is one replica, whose load the front door balances; use `bana launch --instances`"
)
_PLAIN_HTTP = (
    "the front door speaks plain HTTP/1.1 to its instances, on this machine only; leave it out, "
    "and put a proxy that speaks more before the front door"
)
_LIFELINE = (
    "SGLang does not load plugins in these workers, and they could outlive the launcher; leave it "
    "out"
)
_HAND_OFF = (
    "the front door sends no bootstrap room; start SGLang's own pair and attach its router "
    "with `bana launch --upstream`"
)
_SECRET = "instances accept only the run's own secret; set bana's --api-key / --admin-api-key"
_GRPC = "SGLang's gRPC server does not ask for the run's secret; leave it out and use HTTP"
_ENCODER = (
    "it needs an encoder server, which bana does not start; start SGLang's own servers and attach "
    "them with `bana launch --upstream`"
)

REFUSALS = (
    Refusal("use_ray", _is_set, _OWN_ENTRY),
    Refusal("smg_grpc_mode", _is_set, _OWN_ENTRY),
    Refusal("grpc_mode", _is_set, _OWN_ENTRY),
    Refusal("grpc_port", _is_set, _GRPC),
    Refusal("sidecar", _is_set, "it needs SGLang's gRPC server, which bana refuses; leave it out"),
    Refusal("encoder_only", _is_set, _OWN_ENTRY),
    Refusal("language_only", _is_set, _ENCODER),
    Refusal("encoder_urls", _is_set, _ENCODER),
    Refusal("tokenizer_worker_num", _is_above_one, _LIFELINE),
    Refusal("dp_size", _is_above_one, _ONE_REPLICA),
    Refusal("attn_dp_size", _is_above_one, _ONE_REPLICA),
    Refusal(
        "nnodes",
        _is_above_one,
        "an instance lives on one machine; attach servers elsewhere with `bana launch --upstream`",
    ),
    Refusal("disaggregation_mode", _is_not_null, _HAND_OFF),
    Refusal("decoupled_spec_role", _is_not_null, _HAND_OFF),
    Refusal("enable_http2", _is_set, _PLAIN_HTTP),
    Refusal("ssl_certfile", _is_set, _PLAIN_HTTP),
    Refusal("api_key", _is_set, _SECRET),
    Refusal("admin_api_key", _is_set, _SECRET),
)

_CPU_REFUSALS = (
    Refusal(
        "speculative_algorithm",
        _is_set,
        "bana's CPU attention does not verify drafts; leave it out, or use a GPU",
    ),
)

_OWN_QUEUE = (
    "bana's policies decide the queue and the steps; leave it out, or keep SGLang's own with "
    "`--set scheduling.order=stock --set scheduling.governor=stock`"
)


def _is_not_fcfs(value: Any) -> bool:
    return value != "fcfs"


_CONDUCTED_REFUSALS = (
    Refusal("schedule_policy", _is_not_fcfs, _OWN_QUEUE),
    Refusal("enable_priority_scheduling", _is_set, _OWN_QUEUE),
    Refusal("prefill_decode_interval", _is_set, _OWN_QUEUE),
    Refusal("enable_prefill_delayer", _is_set, _OWN_QUEUE),
    Refusal("min_free_slots_delay", _is_set, _OWN_QUEUE),
    Refusal("enable_dynamic_chunking", _is_set, _OWN_QUEUE),
    Refusal("pp_size", _is_above_one, _OWN_QUEUE),
    Refusal("dllm_algorithm", _is_set, _OWN_QUEUE),
    Refusal("enable_hisparse", _is_set, _OWN_QUEUE),
)

_OWN_STORE = (
    "bana's store is behind the prefix cache; leave it out, or leave the store off with "
    "`--set store.enabled=false`"
)
_NOT_STORED = "the store does not serve it; leave it out, or leave the store off"

STORE_REFUSALS = (
    Refusal("speculative_algorithm", _is_set, _NOT_STORED),
    Refusal("pp_size", _is_above_one, _NOT_STORED),
    Refusal("attn_cp_size", _is_above_one, _NOT_STORED),
    Refusal("dcp_size", _is_above_one, _NOT_STORED),
    Refusal("enable_dp_attention", _is_set, _NOT_STORED),
    Refusal("enable_hisparse", _is_set, _NOT_STORED),
    Refusal("enable_unified_memory", _is_set, _NOT_STORED),
    Refusal("enable_session_radix_cache", _is_set, _NOT_STORED),
    Refusal("enable_lmcache", _is_set, _OWN_STORE),
    Refusal("enable_flexkv", _is_set, _OWN_STORE),
    Refusal("enable_streaming_session", _is_set, _NOT_STORED),
    Refusal("dllm_algorithm", _is_set, _NOT_STORED),
)

# SGLang reads these beside its flags; each message ends with "unset it".
_REFUSED_ENVIRONMENT = {
    "SGLANG_RUST_SERVER": "SGLang would start another server than bana's",
    "SGLANG_GRPC_PORT": "SGLang's gRPC server does not ask for the run's secret",
    "SGLANG_USE_CPU_ENGINE": "it needs a CPU build of SGLang's kernels; bana's platform does not",
}


def refuse_unsupported(server_args: Any) -> None:
    """ConfigError at the first flag or variable that bana cannot honour on any device."""
    _refuse_environment()
    _refuse_fields(server_args, REFUSALS)


def refuse_unsupported_on_cpu(server_args: Any) -> None:
    """ConfigError at the first flag that bana's CPU platform cannot honour."""
    _refuse_fields(server_args, _CPU_REFUSALS)


def refuse_unconducted(server_args: Any) -> None:
    """ConfigError at the first flag that would decide the queue beside bana's policies."""
    _refuse_fields(server_args, _CONDUCTED_REFUSALS)


def refuse_unstored(server_args: Any) -> None:
    """ConfigError at the first flag of what cannot be kept in the store."""
    _refuse_fields(server_args, STORE_REFUSALS)


def _refuse_fields(server_args: Any, refusals: tuple[Refusal, ...]) -> None:
    for refusal in refusals:
        value = getattr(server_args, refusal.field)
        if refusal.is_refused(value):
            flag = "--" + refusal.field.replace("_", "-")
            # A key would otherwise end up in a log.
            shown = "" if refusal.reason is _SECRET else f" {value}"
            raise ConfigError(f"SGLang's {flag}{shown} cannot be used: {refusal.reason}")


def _refuse_environment() -> None:
    for name, reason in _REFUSED_ENVIRONMENT.items():
        value = os.environ.get(name, "")
        if value.lower() not in ("", "0", "false"):
            raise ConfigError(f"{name}={value} cannot be used: {reason}; unset it")
