"""The CPU attention backend `bana_cpu`: computes only the query rows of each request.

SGLang's torch_native backend pads the query to the whole row, so that every chunk pays for its
whole prefix. Each request is computed by itself, so its result does not depend on the others in
its batch.
"""

from __future__ import annotations

from typing import Any, Never

import torch
from sglang.srt.arg_groups.choices import (
    ATTENTION_BACKEND_CHOICES,
    add_attention_backend_choices,
)
from sglang.srt.layers.attention.attention_registry import (
    ATTENTION_BACKENDS,
    register_attention_backend,
)
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, KVWriteLoc, MHATokenToKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from torch import Tensor

from bana.slo.errors import SeamError
from sglang_bana.engine.attention_math import (
    CausalMasks,
    Sight,
    SightMode,
    attend,
    attend_rows,
    pad_rows,
)
from sglang_bana.engine.attention_rows import (
    ForwardPlan,
    RowReader,
    Span,
    plan_decode,
    plan_extend,
)

NAME = "bana_cpu"
_EXTEND_MODES = (ForwardMode.EXTEND, ForwardMode.MIXED, ForwardMode.SPLIT_PREFILL)


def register_backend() -> None:
    """Make `--attention-backend bana_cpu` known to SGLang; again is fine."""
    known = ATTENTION_BACKENDS.get(NAME, BanaCpuAttnBackend)
    if known is not BanaCpuAttnBackend:
        raise SeamError(
            f"SGLang already has an attention backend {NAME!r} ({known!r}): only bana may register "
            "it; remove the other plugin"
        )
    register_attention_backend(NAME)(BanaCpuAttnBackend)
    if NAME not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([NAME])


class BanaCpuAttnBackend(AttentionBackend):
    """Decoder and encoder-only self-attention over a paged KV pool in host memory.

    Extend costs O(new x context), decode O(context) a request. What it cannot compute it refuses,
    at construction or at the layer's first call.
    """

    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        _check_runner(model_runner)
        self.device = model_runner.device
        # SGLang finds the pools through the backend.
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self.forward_metadata: ForwardPlan | None = None
        self._masks = CausalMasks()
        self._reader = RowReader()

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Find every request's rows once for all layers."""
        mode = forward_batch.forward_mode
        table = self.req_to_token_pool.req_to_token
        if mode is ForwardMode.DECODE:
            self.forward_metadata = plan_decode(forward_batch, table)
        elif mode in _EXTEND_MODES:
            self.forward_metadata = plan_extend(forward_batch, table)
        elif mode is ForwardMode.IDLE:
            self.forward_metadata = ForwardPlan(())
        else:
            _refuse(f"forward mode {mode.name}", "start the server without speculative decoding")

    def init_cpu_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Refuse graphs: what is read differs with every batch."""
        _refuse(
            f"a decode graph of {max_bs} requests and {max_num_tokens} tokens",
            "start the server without --enable-torch-compile",
        )

    def support_triton(self) -> bool:
        """No kernel of this backend is Triton's."""
        return False

    def forward_extend(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: Any = True,  # noqa: FBT002 - SGLang's signature
        **kwargs: Any,
    ) -> Tensor:
        """Attention of each request's new tokens; writes their KV first."""
        plan = self._begin_layer(layer, q, kwargs)
        if save_kv_cache and k is not None and v is not None:
            self._write(layer, forward_batch, k, v)
        query = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out = query.new_empty((*query.shape[:2], layer.v_head_dim))
        keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
        for span in plan.spans:
            low, sight = _sight_of(layer, span)
            rows = span.rows[low:]
            key = self._reader.read("key", keys, rows, q.dtype)
            value = self._reader.read("value", values, rows, q.dtype)
            part = query[span.first : span.last]
            done = attend(part, key, value, sight, layer.scaling, self._masks)
            out[span.first : span.last] = done.out
        return out.view_as(q) if out.numel() == q.numel() else out.flatten(1)

    def forward_decode(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: Any = True,  # noqa: FBT002 - SGLang's signature
        **kwargs: Any,
    ) -> Tensor:
        """Attention of each request's last token; writes its KV first."""
        plan = self._begin_layer(layer, q, kwargs)
        if save_kv_cache and k is not None and v is not None:
            self._write(layer, forward_batch, k, v)
        group = layer.tp_q_head_num // layer.tp_k_head_num
        query = pad_rows(q.reshape(-1, layer.tp_k_head_num, group, layer.qk_head_dim))
        out = q.new_empty((query.shape[0], layer.tp_k_head_num, group, layer.v_head_dim))
        keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
        for index, span in enumerate(plan.spans):
            rows = span.rows[_oldest_seen(layer, span) :]
            key = self._reader.read("key", keys, rows, q.dtype)
            value = self._reader.read("value", values, rows, q.dtype)
            part, _ = attend_rows(query[index : index + 1], key, value, None, layer.scaling)
            out[index] = part[0, :, :group]
        return out.view(out.shape[0], -1)

    def _begin_layer(self, layer: Any, query: Tensor, extras: dict[str, Any]) -> ForwardPlan:
        _check_layer(layer, extras)
        plan = self.forward_metadata
        if plan is None:
            raise SeamError(
                f"attention of layer {layer.layer_id} ran before init_forward_metadata: bana_cpu "
                "relies on SGLang to plan each batch; check that SGLang is the pinned version"
            )
        plan.check_query(query)
        return plan

    def _write(self, layer: Any, forward_batch: Any, key: Tensor, value: Tensor) -> None:
        where = KVWriteLoc(forward_batch.out_cache_loc, None)
        self.token_to_kv_pool.set_kv_buffer(layer, where, key, value)


def _oldest_seen(layer: Any, span: Span) -> int:
    """The first key that any query of the span sees."""
    window = layer.sliding_window_size
    return max(0, span.prefix - window) if window > -1 else 0


def _sight_of(layer: Any, span: Span) -> tuple[int, Sight]:
    """The first key to read, and what the span's queries see from there on."""
    if layer.attn_type is AttentionType.ENCODER_ONLY:
        return 0, Sight(SightMode.ALL)
    low = _oldest_seen(layer, span)
    window = layer.sliding_window_size if layer.sliding_window_size > -1 else None
    return low, Sight(SightMode.CAUSAL, span.prefix - low, window)


def _refuse(what: str, instead: str) -> Never:
    raise SeamError(
        f"the attention backend bana_cpu does not support {what}; {instead}, or use "
        "--attention-backend torch_native"
    )


def _check_runner(runner: Any) -> None:
    if torch.device(runner.device).type != "cpu":
        _refuse(f"device {runner.device!r} (only cpu)", "choose a backend of that device")
    if runner.use_mla_backend:
        _refuse("MLA models", "serve another model")
    if runner.model_config.is_encoder_decoder:
        _refuse("encoder-decoder models", "serve another model")
    pool = runner.token_to_kv_pool
    if not isinstance(pool, MHATokenToKVPool | HybridLinearKVPool):
        _refuse(
            f"the KV pool {type(pool).__name__} (only MHATokenToKVPool, HybridLinearKVPool)",
            "for a sliding-window model start the server with --disable-hybrid-swa-memory",
        )
    full = getattr(pool, "full_kv_pool", pool)
    if full.kv_cache_layout != "nhd":
        _refuse(f"the KV layout {full.kv_cache_layout!r} (only 'nhd')", "unset the layout")


def _check_layer(layer: Any, extras: dict[str, Any]) -> None:
    """Refuse what torch_native would silently leave out."""
    named = f"layer {layer.layer_id}"
    if layer.is_cross_attention:
        _refuse(f"cross attention ({named})", "serve another model")
    if layer.attn_type not in (AttentionType.DECODER, AttentionType.ENCODER_ONLY):
        _refuse(f"attention of type {layer.attn_type.value} ({named})", "serve another model")
    if layer.logit_cap:
        _refuse(f"logit_cap {layer.logit_cap} ({named})", "serve another model")
    if layer.use_irope or layer.xai_temperature_len > 0:
        _refuse(f"chunked or length-scaled attention ({named})", "serve another model")
    given = sorted(name for name, value in extras.items() if value is not None)
    if given:
        _refuse(f"the attention inputs {', '.join(given)} ({named})", "serve another model")
