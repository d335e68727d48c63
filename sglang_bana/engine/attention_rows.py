"""Which KV rows each request of a batch reads, and reading them without allocating."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bana.slo.errors import SeamError


@dataclass(frozen=True)
class Span:
    """One request of a batch: queries `first`..`last`-1, the first at position `prefix`."""

    first: int
    last: int
    prefix: int
    rows: Tensor  # [prefix + last - first], its rows of the KV pool, a view of SGLang's table


@dataclass(frozen=True)
class ForwardPlan:
    """The spans of a batch in query order; the same for every layer of a forward."""

    spans: tuple[Span, ...]

    @property
    def tokens(self) -> int:
        """How many queries the layers will bring."""
        return self.spans[-1].last if self.spans else 0

    def check_query(self, query: Tensor) -> None:
        """Refuse a query of another batch than the plan's."""
        if query.shape[0] != self.tokens:
            raise SeamError(
                f"attention got {query.shape[0]} query rows but the batch was planned for "
                f"{self.tokens}: bana_cpu does not serve padded batches; start the server without "
                "data-parallel attention or use --attention-backend torch_native"
            )


def plan_decode(batch: Any, req_to_token: Tensor) -> ForwardPlan:
    """One query a request, at the end of its row."""
    lengths = batch.seq_lens.tolist()
    return _lay_spans(batch, req_to_token, ((length - 1, 1) for length in lengths))


def plan_extend(batch: Any, req_to_token: Tensor) -> ForwardPlan:
    """Each request's new tokens, behind its prefix."""
    prefixes, counts = batch.extend_prefix_lens.tolist(), batch.extend_seq_lens.tolist()
    return _lay_spans(batch, req_to_token, zip(prefixes, counts, strict=True))


def _lay_spans(batch: Any, req_to_token: Tensor, extents: Iterable[tuple[int, int]]) -> ForwardPlan:
    spans: list[Span] = []
    first = 0
    for slot, (prefix, count) in zip(batch.req_pool_indices.tolist(), extents, strict=True):
        rows = req_to_token[slot, : prefix + count]
        spans.append(Span(first=first, last=first + count, prefix=prefix, rows=rows))
        first += count
    return ForwardPlan(tuple(spans))


@dataclass
class RowReader:
    """Copies rows of a KV buffer side by side into scratch memory that it keeps.

    Fresh memory for each copy costs more in page faults than the copy. A result is valid until
    the next read with the same `role`. Scratch grows to the longest request, in powers of two.
    """

    scratch: dict[tuple[str, torch.dtype, torch.Size], Tensor] = field(default_factory=dict)

    def read(self, role: str, buffer: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """`buffer[rows]` in `dtype`."""
        count = rows.shape[0]
        kind = (role, buffer.dtype, buffer.shape[1:])
        space = self.scratch.get(kind)
        if space is None or space.shape[0] < count:
            capacity = 1 << max(0, count - 1).bit_length()
            # A tensor born in inference mode could not be written outside it.
            with torch.inference_mode(mode=False):
                space = buffer.new_empty((capacity, *buffer.shape[1:]))
            self.scratch[kind] = space
        return torch.index_select(buffer, 0, rows, out=space[:count]).to(dtype)
