"""A stand for attention backends: one batch on SGLang's own pools and layers, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from torch import Tensor

PAGE = 16


@dataclass(frozen=True)
class Heads:
    """The attention shape of a model."""

    query: int
    kv: int
    dim: int
    value_dim: int | None = None

    @property
    def scaling(self) -> float:
        """The usual softmax scale."""
        return self.dim**-0.5


@dataclass(frozen=True)
class Work:
    """One request of a batch: `new` tokens behind `prefix` tokens that are in the pool."""

    prefix: int
    new: int


@dataclass(frozen=True)
class Stand:
    """What a backend sees of a model runner, and one batch for each of `layers`.

    The rows of a request are pages strewn over the pool, as after long service.
    """

    runner: Any
    batch: ForwardBatch
    layers: tuple[RadixAttention, ...]
    inputs: tuple[tuple[Tensor, Tensor, Tensor], ...]

    def run(self, backend: Any) -> list[Tensor]:
        """One forward: plan the batch, then every layer's attention."""
        backend.init_forward_metadata(self.batch)
        return [
            backend.forward(*inputs, layer, self.batch)
            for layer, inputs in zip(self.layers, self.inputs, strict=True)
        ]


@dataclass(frozen=True)
class StandPlan:
    """What a stand is built from. `mode` DECODE wants one new token a request."""

    heads: Heads
    works: Sequence[Work]
    mode: ForwardMode
    dtype: torch.dtype
    layers: int = 1
    kv_dtype: torch.dtype | None = None


def build_stand(plan: StandPlan, seed: int, layer_options: dict[str, Any] | None = None) -> Stand:
    """A stand filled from `seed`: the pool holds the KV of the prefixes, not yet of the rest."""
    source = torch.Generator().manual_seed(seed)
    heads = plan.heads
    value_dim = heads.value_dim or heads.dim
    runner, locations = _build_runner(plan, source)
    new = sum(work.new for work in plan.works)
    inputs = tuple(
        (
            _draw(source, plan.dtype, new, heads.query * heads.dim),
            _draw(source, plan.dtype, new, heads.kv, heads.dim),
            _draw(source, plan.dtype, new, heads.kv, value_dim),
        )
        for _ in range(plan.layers)
    )
    layers = tuple(
        RadixAttention(
            num_heads=heads.query,
            head_dim=heads.dim,
            scaling=heads.scaling,
            num_kv_heads=heads.kv,
            layer_id=index,
            v_head_dim=value_dim,
            **(layer_options or {}),
        )
        for index in range(plan.layers)
    )
    return Stand(runner, _build_batch(plan, locations), layers, inputs)


def _draw(source: torch.Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, generator=source).to(dtype)


def _build_runner(plan: StandPlan, source: torch.Generator) -> tuple[Any, list[Tensor]]:
    lengths = [work.prefix + work.new for work in plan.works]
    pages = [-(-length // PAGE) for length in lengths]
    size = sum(pages) * PAGE
    heads = plan.heads
    pool = MHATokenToKVPool(
        size=size,
        page_size=PAGE,
        dtype=plan.kv_dtype or plan.dtype,
        head_num=heads.kv,
        head_dim=heads.dim,
        v_head_dim=heads.value_dim,
        layer_num=plan.layers,
        device="cpu",
        enable_memory_saver=False,
    )
    for buffer in (*pool.k_buffer, *pool.v_buffer):
        values = torch.randn(buffer.shape, generator=source)
        buffer.copy_(values.to(pool.dtype).view(buffer.dtype))
    table = ReqToTokenPool(len(lengths), max(lengths), "cpu", enable_memory_saver=False)
    order = torch.randperm(sum(pages), generator=source) + 1
    locations = []
    for slot, (length, mine) in enumerate(zip(lengths, order.split(pages), strict=True), 1):
        rows = (mine[:, None] * PAGE + torch.arange(PAGE)).flatten()[:length]
        table.req_to_token[slot, :length] = rows
        locations.append(rows)
    runner = SimpleNamespace(
        device="cpu",
        use_mla_backend=False,
        model_config=SimpleNamespace(is_encoder_decoder=False),
        req_to_token_pool=table,
        token_to_kv_pool=pool,
    )
    return runner, locations


def _build_batch(plan: StandPlan, locations: Sequence[Tensor]) -> ForwardBatch:
    works = plan.works
    lengths = torch.tensor([work.prefix + work.new for work in works])
    fresh = [rows[work.prefix :] for rows, work in zip(locations, works, strict=True)]
    batch = ForwardBatch(
        forward_mode=plan.mode,
        batch_size=len(works),
        input_ids=torch.zeros(sum(work.new for work in works), dtype=torch.int64),
        req_pool_indices=torch.arange(1, len(works) + 1),
        seq_lens=lengths,
        out_cache_loc=torch.cat(fresh),
        seq_lens_sum=int(lengths.sum()),
    )
    if plan.mode is not ForwardMode.DECODE:
        batch.extend_prefix_lens = torch.tensor([work.prefix for work in works])
        batch.extend_seq_lens = torch.tensor([work.new for work in works])
    return batch
