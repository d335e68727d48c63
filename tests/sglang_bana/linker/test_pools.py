"""A pool that cannot be served is refused with the reason; the one that can is described."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType

from bana.slo.errors import ConfigError
from sglang_bana.engine.linker.pools import find_obstacle, read_layout

FULL = {ComponentType.FULL}


def pool_of(dtype: torch.dtype = torch.bfloat16) -> MHATokenToKVPool:
    return MHATokenToKVPool(
        64, 16, dtype, 3, 64, 2, "cpu", enable_memory_saver=False, v_head_dim=32
    )


def relabelled() -> MHATokenToKVPool:
    pool = pool_of()
    pool.kv_cache_layout = "hnd"
    return pool


def params_of(**changed: Any) -> Any:
    usual = {
        "page_size": 16,
        "mtp_draft_device_pools": (),
        "sidecar_draft_device_pools": (),
        "is_eagle": False,
    }
    return SimpleNamespace(**(usual | changed))


def test_a_plain_pool_is_described_by_its_own_numbers() -> None:
    pool = pool_of()
    layout = read_layout(pool, params_of(), FULL)
    assert (layout.layers, layout.page_tokens, layout.heads) == (2, 16, 3)
    assert (layout.key_dim, layout.value_dim, layout.item_bytes) == (64, 32, 2)
    page_of_keys = pool.k_buffer[0][:16].numel() * 2
    page_of_values = pool.v_buffer[0][:16].numel() * 2
    assert layout.page_bytes == 2 * (page_of_keys + page_of_values)


@pytest.mark.parametrize(
    ("pool", "params", "components", "reason"),
    [
        (pool_of, {}, {*FULL, ComponentType.SWA}, "SWA parts"),
        (pool_of, {}, {*FULL, ComponentType.MAMBA}, "MAMBA parts"),
        (lambda: MLATokenToKVPool.__new__(MLATokenToKVPool), {}, FULL, "a MLATokenToKVPool"),
        (lambda: pool_of(torch.float8_e4m3fn), {}, FULL, "quantised"),
        (relabelled, {}, FULL, "laid out as hnd"),
        (pool_of, {"mtp_draft_device_pools": (1,)}, FULL, "draft"),
        (pool_of, {"is_eagle": True}, FULL, "draft"),
        (pool_of, {"page_size": 1}, FULL, "--page-size 16"),
    ],
)
def test_other_pools_are_refused_with_the_reason(
    pool: Any, params: dict[str, Any], components: set[ComponentType], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as refusal:
        read_layout(pool(), params_of(**params), components)
    assert "store.enabled=false" in str(refusal.value)


def test_there_is_no_obstacle_to_the_pool_that_is_served() -> None:
    assert find_obstacle(pool_of(torch.float32), params_of(page_size=64), FULL) is None
