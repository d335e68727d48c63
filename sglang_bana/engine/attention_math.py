"""Attention of some queries over some keys, with the log-sum-exp that lets parts be merged.

No SGLang here. Shapes: query [n, H, D], key [T, K, D], value [T, K, V] with H = K x group; query
head h reads KV head h // group. The heads of one group are stacked as query rows of their KV
head, so keys and values are never repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import torch
from torch import Tensor

from bana.slo.errors import ConfigError

# Rows (queries x group) and queries of one kernel call. The kernel is fastest from 768 rows on;
# more queries compute more hidden scores. Up to a group of 24 a mask is BLOCK_ROWS x context.
BLOCK_ROWS = 768
BLOCK_QUERIES = 256
_MIN_BLOCK = 32
_MIN_LOOKBACK = 1024


class SightMode(Enum):
    """Whether a query's position limits the keys it sees."""

    ALL = auto()
    CAUSAL = auto()


@dataclass(frozen=True)
class Sight:
    """Which keys the queries see. CAUSAL: query i sees key j if j <= start + i.

    A `window` w also hides j < start + i - w, and needs the keys up to the last query's own.
    """

    mode: SightMode
    start: int = 0
    window: int | None = None

    def bound_keys(self, first: int, last: int, keys: int) -> slice:
        """The keys that any of the queries first..last-1 sees."""
        if self.mode is SightMode.ALL:
            return slice(0, keys)
        low = 0 if self.window is None else max(0, self.start + first - self.window)
        return slice(low, min(keys, self.start + last))


@dataclass(frozen=True)
class Partial:
    """Attention over a part of the keys: `out` [n, H, V] and float32 natural `lse` [n, H].

    A query that sees no key has out 0 and lse -inf.
    """

    out: Tensor
    lse: Tensor


@dataclass
class CausalMasks:
    """Additive masks, one buffer a kind, of which every mask needed is a view.

    A buffer's row r belongs to the block's query r // group; its columns run from `lookback` keys
    before the block's first query up to its last:

        keys      ... low .......... first  first+1  first+2
        query 0   ...  0  0  0  0     0      -inf     -inf
        query 1   ...  0  0  0  0     0       0       -inf

    A longer context widens the buffer to the next power of two.
    """

    buffers: dict[tuple[torch.dtype, int, int | None], Tensor] = field(default_factory=dict)

    def view_mask(self, query: Tensor, group: int, sight: Sight, keys: range) -> Tensor:
        """The mask of `query` [.., rows, D], a block at positions from sight.start, over `keys`."""
        need = sight.start - keys.start
        kind = (query.dtype, group, sight.window)
        buffer = self.buffers.get(kind)
        lookback = -1 if buffer is None else buffer.shape[1] - size_block(group)
        if buffer is None or lookback < need:
            lookback = max(_MIN_LOOKBACK, 1 << max(0, need - 1).bit_length())
            buffer = self.buffers[kind] = _draw_mask(query.dtype, group, sight.window, lookback)
        shift = lookback - sight.start
        return buffer[: query.shape[-2], shift + keys.start : shift + keys.stop]


def size_block(group: int) -> int:
    """How many queries one kernel call takes."""
    fitting = BLOCK_ROWS // group // _MIN_BLOCK * _MIN_BLOCK
    return max(_MIN_BLOCK, min(BLOCK_QUERIES, fitting))


def _draw_mask(dtype: torch.dtype, group: int, window: int | None, lookback: int) -> Tensor:
    count = size_block(group)
    query = torch.arange(count).repeat_interleave(group)[:, None]
    key = torch.arange(-lookback, count)[None, :]
    hidden = key > query
    if window is not None:
        hidden |= key < query - window
    with torch.inference_mode(mode=False):
        mask = torch.zeros(hidden.shape, dtype=dtype)
        return mask.masked_fill_(hidden, float("-inf"))


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sight: Sight,
    scaling: float,
    masks: CausalMasks | None = None,
) -> Partial:
    """Softmax attention of `query` over the keys that `sight` shows.

    Computes only the query rows: O(n x T x H x D), of which causal blocks skip the keys that none
    of their queries sees. `masks` keeps the masks for the next call.
    """
    count, heads, _ = query.shape
    _check_operands(query, key, value, sight)
    if count == 0 or key.shape[0] == 0:
        return Partial(
            out=query.new_zeros((count, heads, value.shape[2])),
            lse=query.new_full((count, heads), float("-inf"), dtype=torch.float32),
        )
    if _is_square(query, key, value, sight):
        return _attend_square(query, key, value, scaling)
    return _attend_blocks((query, key, value), sight, scaling, masks or CausalMasks())


def _check_operands(query: Tensor, key: Tensor, value: Tensor, sight: Sight) -> None:
    if query.shape[1] % key.shape[1] or key.shape[:2] != value.shape[:2]:
        raise ConfigError(
            f"attention over query {tuple(query.shape)}, key {tuple(key.shape)}, value "
            f"{tuple(value.shape)}: query heads must be a multiple of the KV heads, and keys and "
            "values must pair up; check the head counts of the layer"
        )
    if sight.start < 0 or (sight.window is not None and sight.mode is SightMode.ALL):
        raise ConfigError(
            f"attention cannot see by {sight}: start must be >= 0 and a window needs CAUSAL; "
            "drop keys that nobody sees instead"
        )
    if sight.window is not None and key.shape[0] < sight.start + query.shape[0]:
        raise ConfigError(
            f"a window of {sight.window} over {key.shape[0]} keys cannot serve queries up to "
            f"position {sight.start + query.shape[0] - 1}: pass the keys up to the last query"
        )


def _is_square(query: Tensor, key: Tensor, value: Tensor, sight: Sight) -> bool:
    """Whether the kernel's own causal rule, which skips what is hidden, says the same."""
    whole = sight.mode is SightMode.CAUSAL and sight.start == 0 and sight.window is None
    return whole and 1 < query.shape[0] == key.shape[0] and query.shape[2] == value.shape[2]


def _attend_square(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Partial:
    keys, values = key.transpose(0, 1)[None], value.transpose(0, 1)[None]
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query.transpose(0, 1)[None], keys, values, 0.0, True, scale=scaling
    )
    return Partial(out=out[0].transpose(0, 1), lse=lse[0].transpose(0, 1))


def _attend_blocks(
    operands: tuple[Tensor, Tensor, Tensor], sight: Sight, scaling: float, masks: CausalMasks
) -> Partial:
    query, key, value = operands
    count, heads, dim = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    grouped = query.view(count, kv_heads, group, dim)
    blocks: list[Partial] = []
    for first in range(0, count, size_block(group)):
        last = min(count, first + size_block(group))
        rows = stack_group(grouped[first:last])
        seen = sight.bound_keys(first, last, key.shape[0])
        mask = None
        if sight.mode is SightMode.CAUSAL and last - first > 1:
            block = Sight(sight.mode, sight.start + first, sight.window)
            mask = masks.view_mask(rows, group, block, range(seen.start, seen.stop))
        out, lse = attend_rows(rows, key[seen], value[seen], mask, scaling)
        shape = (kv_heads, last - first, group)
        blocks.append(
            Partial(
                out=out.reshape(*shape, -1).transpose(0, 1).flatten(1, 2),
                lse=lse.reshape(shape).transpose(0, 1).flatten(1, 2),
            )
        )
    if len(blocks) == 1:
        return blocks[0]
    return Partial(
        out=torch.cat([part.out for part in blocks]), lse=torch.cat([part.lse for part in blocks])
    )


def stack_group(grouped: Tensor) -> Tensor:
    """[n, K, group, D] as rows [1, K, n x group, D]: a group's heads are rows of its KV head."""
    count, kv_heads, group, dim = grouped.shape
    return grouped.transpose(0, 1).reshape(1, kv_heads, count * group, dim)


def pad_rows(rows: Tensor) -> Tensor:
    """`rows` [.., r, D] with one zero row more where the kernel's product is slow at r rows.

    Measured on AVX-512: an odd number of rows costs more than the next even one, and a single row
    in half precision three times as much as two; a single float32 row is fastest as it is.
    """
    count = rows.shape[-2]
    if count % 2 == 0 or (count == 1 and rows.dtype == torch.float32):
        return rows
    return torch.nn.functional.pad(rows, (0, 0, 0, 1))


def attend_rows(
    rows: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float
) -> tuple[Tensor, Tensor]:
    """Output [1, K, r, V] and float32 log-sum-exp [1, K, r] of stacked `rows` over all keys."""
    keys, values = key.transpose(0, 1)[None], value.transpose(0, 1)[None]
    if rows.shape[-1] == value.shape[-1]:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            rows, keys, values, attn_mask=mask, scale=scaling
        )
    # The kernel wants one head size for keys and values.
    scores = rows.float() @ keys.float().transpose(-1, -2) * scaling
    if mask is not None:
        scores += mask
    lse = scores.logsumexp(-1)
    out = torch.exp(scores - lse[..., None]) @ values.float()
    return out.to(rows.dtype), lse


def merge_partials(parts: Sequence[Partial]) -> Partial:
    """Attention over the union of disjoint parts of the keys, weighed by their log-sum-exp.

    In float32 with the largest log-sum-exp taken out. Source: the online softmax of
    FlashAttention (Dao et al. 2022, section 3.1).
    """
    if not parts:
        raise ConfigError("no partial attention to merge: pass one part or more")
    each = torch.stack([part.lse for part in parts])
    top = each.amax(0)
    top = top.masked_fill(top == float("-inf"), 0.0)
    weights = torch.exp(each - top)
    total = weights.sum(0)
    out = torch.zeros_like(parts[0].out, dtype=torch.float32)
    for part, weight in zip(parts, weights, strict=True):
        out += part.out.float() * weight[..., None]
    out /= total.masked_fill(total == 0, 1.0)[..., None]
    return Partial(out=out.to(parts[0].out.dtype), lse=top + total.log())
