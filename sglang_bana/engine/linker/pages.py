"""Copies pages between a pool of KV and slots of the arena, one layer at a time.

pool, layer l:  K │page 0│page 1│…│   ── K and V of the wanted pages ──▶  slot, layer l: │K│V│
                V │page 0│page 1│…│  ◀──
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from bana.radix_global.link import Slot, StoreLink
from sglang_bana.engine.linker.layout import PageLayout

Rows = npt.NDArray[np.uint8]


class PageCopy(Protocol):
    """One set of pages on its way; the thread that began it calls all but `fence`."""

    def load_layer(self, layer: int) -> None:
        """Bring a layer from the slots into the pool, or begin to."""
        ...

    def save_layer(self, layer: int) -> None:
        """Bring a layer from the pool into the slots, or begin to."""
        ...

    def finish(self) -> None:
        """Return when every layer that was begun is there."""
        ...

    def fence(self, layer: int) -> None:
        """Let the forward pass of the calling thread read the layer only once it is there."""
        ...


class PageMover(Protocol):
    """Copies for one pool."""

    def begin(
        self, store: StoreLink, pages: Sequence[int], slots: Sequence[Slot]
    ) -> PageCopy | None:
        """A copy between pages of the pool and as many slots; None where their arena is gone."""
        ...

    def close(self) -> None:
        """Let go of the arena."""
        ...


class HostPages:
    """Of a pool in host memory: one move of memory for each page, layer, and K or V.

    Rows go straight between the mapped arena and the pool. Gathering a layer's pages in one call
    of torch takes a buffer in between, and two to three times as long.
    """

    def __init__(self, keys: Sequence[Any], values: Sequence[Any], layout: PageLayout) -> None:
        self._layout = layout
        self._keys = [as_page_rows(buffer, layout.key_bytes).numpy() for buffer in keys]
        self._values = [as_page_rows(buffer, layout.value_bytes).numpy() for buffer in values]

    def begin(
        self, store: StoreLink, pages: Sequence[int], slots: Sequence[Slot]
    ) -> PageCopy | None:
        pairs: list[tuple[int, Rows]] = []
        for page, slot in zip(pages, slots, strict=True):
            view = store.view(slot)
            if view is None:
                return None
            pairs.append((page, np.frombuffer(view, np.uint8)))
        return HostCopy(self._layout, self._keys, self._values, pairs)

    def close(self) -> None:
        """Nothing of the arena is kept between copies."""


class HostCopy:
    """Within host memory: what was begun is there when the call returns."""

    def __init__(
        self,
        layout: PageLayout,
        keys: Sequence[Rows],
        values: Sequence[Rows],
        pairs: Sequence[tuple[int, Rows]],
    ) -> None:
        self._layout = layout
        self._keys = keys
        self._values = values
        self._pairs = pairs

    def load_layer(self, layer: int) -> None:
        keys, values = self._keys[layer], self._values[layer]
        keys_at, values_at = self._layout.keys_at(layer), self._layout.values_at(layer)
        for page, slot in self._pairs:
            keys[page] = slot[keys_at]
            values[page] = slot[values_at]

    def save_layer(self, layer: int) -> None:
        keys, values = self._keys[layer], self._values[layer]
        keys_at, values_at = self._layout.keys_at(layer), self._layout.values_at(layer)
        for page, slot in self._pairs:
            slot[keys_at] = keys[page]
            slot[values_at] = values[page]

    def finish(self) -> None:
        """Every call has returned."""

    def fence(self, layer: int) -> None:
        """The layer was there before it was said to be."""


def as_page_rows(buffer: Any, row_bytes: int) -> Any:
    """A pool's buffer of one layer as bytes, a row a page, without what does not fill a page.

    The memory is the buffer's own.
    """
    flat = buffer.view(-1).view(torch.uint8)
    return flat[: flat.numel() // row_bytes * row_bytes].view(-1, row_bytes)
