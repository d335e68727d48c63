from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bana.slo.errors import ConfigError
from sglang_bana.engine.attention_math import (
    CausalMasks,
    Partial,
    Sight,
    SightMode,
    attend,
    merge_partials,
    size_block,
)

DIM = 16
SCALING = 0.25
ALL = Sight(SightMode.ALL)


def draw(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def causal(start: int, window: int | None = None) -> Sight:
    return Sight(SightMode.CAUSAL, start, window)


def attend_plainly(query: Tensor, key: Tensor, value: Tensor, sight: Sight) -> Partial:
    """The definition, one query and head at a time in float64."""
    count, heads, _ = query.shape
    group = heads // key.shape[1]
    out = torch.zeros(count, heads, value.shape[2], dtype=torch.float64)
    lse = torch.full((count, heads), -math.inf, dtype=torch.float64)
    for i in range(count):
        at = sight.start + i
        seen = [
            j
            for j in range(key.shape[0])
            if sight.mode is SightMode.ALL
            or (j <= at and (sight.window is None or j >= at - sight.window))
        ]
        for head in range(heads if seen else 0):
            keys, values = key[seen, head // group].double(), value[seen, head // group].double()
            scores = keys @ query[i, head].double() * SCALING
            lse[i, head] = scores.logsumexp(0)
            out[i, head] = scores.softmax(0) @ values
    return Partial(out, lse)


def assert_near(got: Partial, want: Partial, tolerance: float = 2e-5) -> None:
    assert got.lse.dtype == torch.float32
    torch.testing.assert_close(got.out.double(), want.out.double(), atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(got.lse.double(), want.lse.double(), atol=tolerance, rtol=tolerance)


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 70),
    prefix=st.integers(0, 60),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    window=st.none() | st.integers(0, 90),
    value_dim=st.sampled_from([DIM, 24]),
)
def test_causal_attention_matches_its_definition(
    count: int, prefix: int, kv_heads: int, group: int, window: int | None, value_dim: int
) -> None:
    query = draw(1, count, kv_heads * group, DIM)
    key, value = (
        draw(2, prefix + count, kv_heads, DIM),
        draw(3, prefix + count, kv_heads, value_dim),
    )
    sight = causal(prefix, window)

    assert_near(attend(query, key, value, sight, SCALING), attend_plainly(query, key, value, sight))


@pytest.mark.parametrize("group", [1, 3, 16])
@pytest.mark.parametrize("prefix", [0, 5, 1500])
def test_blocks_join_without_a_seam(group: int, prefix: int) -> None:
    count = size_block(group) + 3
    query = draw(1, count, group, DIM)
    key, value = draw(2, prefix + count, 1, DIM), draw(3, prefix + count, 1, DIM)
    whole = attend(query, key, value, causal(prefix), SCALING)

    each = [
        attend(query[i : i + 1], key, value, causal(prefix + i), SCALING)
        for i in (0, 1, count - 5, count - 4, count - 3, count - 1)
    ]

    rows = [0, 1, count - 5, count - 4, count - 3, count - 1]
    one_by_one = Partial(torch.cat([p.out for p in each]), torch.cat([p.lse for p in each]))
    assert_near(Partial(whole.out[rows], whole.lse[rows]), one_by_one)


def test_kept_masks_serve_longer_and_shorter_contexts() -> None:
    masks = CausalMasks()
    for prefix in (3, 5000, 0, 1200, 40):
        query = draw(prefix, 7, 6, DIM)
        key, value = draw(1, prefix + 7, 2, DIM), draw(2, prefix + 7, 2, DIM)
        fresh = attend(query, key, value, causal(prefix), SCALING)
        kept = attend(query, key, value, causal(prefix), SCALING, masks)
        assert torch.equal(fresh.out, kept.out)
        assert torch.equal(fresh.lse, kept.lse)


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 40),
    prefix=st.integers(0, 50),
    cuts=st.lists(st.integers(0, 90), max_size=3),
    group=st.integers(1, 3),
)
def test_parts_by_position_merge_to_the_whole(
    count: int, prefix: int, cuts: list[int], group: int
) -> None:
    total = prefix + count
    query, key, value = (
        draw(1, count, 2 * group, DIM),
        draw(2, total, 2, DIM),
        draw(3, total, 2, DIM),
    )
    edges = sorted({0, prefix, *(min(cut, prefix) for cut in cuts)})
    parts = [
        attend(query, key[low:high], value[low:high], ALL, SCALING)
        for low, high in itertools.pairwise(edges)
    ]
    parts.append(attend(query, key[prefix:], value[prefix:], causal(0), SCALING))

    whole = attend(query, key, value, causal(prefix), SCALING)

    assert_near(merge_partials(parts), whole)


def test_parts_by_kv_head_group_join_bitwise() -> None:
    query, key, value = draw(1, 20, 12, DIM), draw(2, 84, 4, DIM), draw(3, 84, 4, DIM)
    whole = attend(query, key, value, causal(64), SCALING)
    halves = [
        attend(query[:, 3 * low : 3 * low + 6], key[:, low : low + 2], value[:, low : low + 2],
               causal(64), SCALING)
        for low in (0, 2)
    ]  # fmt: skip

    assert torch.equal(whole.out, torch.cat([half.out for half in halves], 1))
    assert torch.equal(whole.lse, torch.cat([half.lse for half in halves], 1))


@pytest.mark.parametrize("sight", [ALL, causal(4), causal(4, 2)])
def test_no_queries_have_no_rows(sight: Sight) -> None:
    query, key, value = draw(1, 0, 4, DIM), draw(2, 4, 2, DIM), draw(3, 4, 2, 8)
    part = attend(query, key, value, sight, SCALING)

    assert (part.out.shape, part.lse.shape) == ((0, 4, 8), (0, 4))


def test_no_keys_weigh_nothing() -> None:
    query, key, value = draw(1, 3, 4, DIM), draw(2, 9, 2, DIM), draw(3, 9, 2, DIM)
    none = attend(query, key[:0], value[:0], ALL, SCALING)
    some = attend(query, key, value, ALL, SCALING)

    assert torch.equal(none.out, torch.zeros_like(none.out))
    assert bool((none.lse == -math.inf).all())
    assert_near(merge_partials([none, some]), some, tolerance=1e-6)
    both_empty = merge_partials([none, none])
    assert torch.equal(both_empty.out, none.out)
    assert torch.equal(both_empty.lse, none.lse)


def test_merging_survives_scores_beyond_the_range_of_exp() -> None:
    query = torch.full((2, 1, DIM), 40.0)
    key, value = torch.full((6, 1, DIM), 40.0), draw(3, 6, 1, DIM)
    key[3:] = -40.0
    parts = [attend(query, key[s], value[s], ALL, SCALING) for s in (slice(0, 3), slice(3, 6))]

    merged = merge_partials(parts)

    assert bool(torch.isfinite(merged.out).all())
    assert_near(merged, attend_plainly(query, key, value, ALL))


def test_half_precision_keeps_a_float32_log_sum_exp() -> None:
    query = draw(1, 5, 6, DIM, dtype=torch.bfloat16)
    key, value = (draw(seed, 45, 2, DIM, dtype=torch.bfloat16) for seed in (2, 3))

    got = attend(query, key, value, causal(40), SCALING)

    assert got.out.dtype == torch.bfloat16
    want = attend_plainly(query, key, value, causal(40))
    torch.testing.assert_close(got.out.double(), want.out, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(got.lse.double(), want.lse, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "keys", "sight", "said"),
    [
        (5, 2, 9, ALL, "multiple"),
        (4, 2, 9, causal(-1), "start must be >= 0"),
        (4, 2, 9, Sight(SightMode.ALL, 0, 4), "CAUSAL"),
        (4, 2, 9, causal(7, 4), "keys up to the last query"),
    ],
)
def test_what_it_cannot_compute_is_refused(
    heads: int, kv_heads: int, keys: int, sight: Sight, said: str
) -> None:
    query, key = draw(1, 3, heads, DIM), draw(2, keys, kv_heads, DIM)

    with pytest.raises(ConfigError, match=said):
        attend(query, key, key, sight, SCALING)


def test_merging_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="no partial"):
        merge_partials([])
