"""Where each layer of a page lies in a slot of the arena.

slot  │ K of layer 0 │ V of layer 0 │ K of layer 1 │ V of layer 1 │ … │ unused
      └─ page_tokens rows of heads × dim numbers, as in the pool ─┘
"""

from __future__ import annotations

import msgspec


class PageLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of one page of every layer of one rank, a layer in one piece."""

    layers: int
    page_tokens: int
    heads: int
    key_dim: int
    value_dim: int
    item_bytes: int

    @property
    def key_bytes(self) -> int:
        """K of one layer."""
        return self.page_tokens * self.heads * self.key_dim * self.item_bytes

    @property
    def value_bytes(self) -> int:
        """V of one layer."""
        return self.page_tokens * self.heads * self.value_dim * self.item_bytes

    @property
    def layer_bytes(self) -> int:
        """K and V of one layer."""
        return self.key_bytes + self.value_bytes

    @property
    def page_bytes(self) -> int:
        """All layers."""
        return self.layers * self.layer_bytes

    @property
    def name(self) -> str:
        """The order of the bytes in words, for the namespace."""
        return f"layers-kv-nhd:{self.heads}x{self.key_dim}+{self.value_dim}x{self.item_bytes}"

    def keys_at(self, layer: int) -> slice:
        """Where K of a layer lies in a slot."""
        start = layer * self.layer_bytes
        return slice(start, start + self.key_bytes)

    def values_at(self, layer: int) -> slice:
        """Where V of a layer lies in a slot."""
        start = layer * self.layer_bytes + self.key_bytes
        return slice(start, start + self.value_bytes)
