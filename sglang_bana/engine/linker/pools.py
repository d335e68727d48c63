"""Which pools of KV the store serves: plain attention in full precision, token after token."""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType

from bana.slo.errors import ConfigError
from sglang_bana.engine.linker.layout import PageLayout

_STEP = "leave the store off with `--set store.enabled=false`"


def read_layout(pool: Any, params: Any, components: set[ComponentType]) -> PageLayout:
    """The layout of the pool's pages; ConfigError that says why it is not served."""
    reason = find_obstacle(pool, params, components)
    if reason is not None:
        raise ConfigError(f"the store does not serve this model's KV: {reason}; {_STEP}")
    return PageLayout(
        layers=pool.layer_num,
        page_tokens=params.page_size,
        heads=pool.head_num,
        key_dim=pool.head_dim,
        value_dim=pool.v_head_dim,
        item_bytes=pool.store_dtype.itemsize,
    )


def find_obstacle(pool: Any, params: Any, components: set[ComponentType]) -> str | None:
    """What about the pool is not served, None where all is."""
    others = sorted(component.name for component in components - {ComponentType.FULL})
    if others:
        return f"its cache has {', '.join(others)} parts beside full attention"
    if type(pool) is not MHATokenToKVPool:
        return f"its pool is a {type(pool).__name__}, served is MHATokenToKVPool alone"
    if pool.is_quantized_kv_cache or pool.store_dtype != pool.dtype:
        return f"its KV is quantised ({pool.dtype} kept as {pool.store_dtype})"
    if pool.kv_cache_layout != "nhd":
        return f"its pool is laid out as {pool.kv_cache_layout}, served is nhd"
    if params.mtp_draft_device_pools or params.sidecar_draft_device_pools or params.is_eagle:
        return "a draft model keeps KV of its own"
    if params.page_size < 2:
        return f"its pages have {params.page_size} token; start with `--page-size 16` or more"
    return None
