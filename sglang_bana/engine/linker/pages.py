"""Copies pages between a pool of KV and slots of the arena, one layer at a time.

pool, layer l:  K │page 0│page 1│…│   ── K and V of the wanted pages ──▶  slot, layer l: │K│V│
                V │page 0│page 1│…│  ◀──
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from bana.radix_global.link import Rows, Slot, StoreLink
from sglang_bana.engine.linker.layout import PageLayout

WORD_BYTES = 8


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
    """Of a pool in host memory: one call of numpy a layer for K and one for V, whatever the pages.

    Each goes through a buffer of a layer's size. Rows moved one by one take as long alone, but hold
    the interpreter in between, which the forward pass waits for at each of its calls.
    """

    def __init__(self, keys: Sequence[Any], values: Sequence[Any], layout: PageLayout) -> None:
        self._layout = layout
        self._word = choose_word(layout)
        self._keys = [self._view_pool(buffer, layout.key_bytes) for buffer in keys]
        self._values = [self._view_pool(buffer, layout.value_bytes) for buffer in values]

    def begin(
        self, store: StoreLink, pages: Sequence[int], slots: Sequence[Slot]
    ) -> PageCopy | None:
        epochs = {slot.epoch for slot in slots}
        rows = store.rows(epochs.pop()) if len(epochs) == 1 else None
        if rows is None or max(slot.number for slot in slots) >= len(rows):
            return None
        numbers = np.array([slot.number for slot in slots], np.int64)
        places = Places(np.array(pages, np.int64), rows.view(self._word), numbers)
        return HostCopy(self._layout, self._keys, self._values, places)

    def close(self) -> None:
        """Nothing of the arena is kept between copies."""

    def _view_pool(self, buffer: Any, row_bytes: int) -> Rows:
        rows: Rows = as_page_rows(buffer, row_bytes).numpy().view(self._word)
        return rows


@dataclass(frozen=True)
class Places:
    """Page i of the pool, `pages[i]`, belongs to row `numbers[i]` of the arena's `rows`."""

    pages: npt.NDArray[np.int64]
    rows: Rows
    numbers: npt.NDArray[np.int64]


class HostCopy:
    """Within host memory: what was begun is there when the call returns."""

    def __init__(
        self, layout: PageLayout, keys: Sequence[Rows], values: Sequence[Rows], places: Places
    ) -> None:
        self._layout = layout
        self._keys = keys
        self._values = values
        self._places = places

    def load_layer(self, layer: int) -> None:
        at = self._places
        keys_at, values_at = self._find(layer)
        self._keys[layer][at.pages] = at.rows[at.numbers, keys_at]
        self._values[layer][at.pages] = at.rows[at.numbers, values_at]

    def save_layer(self, layer: int) -> None:
        at = self._places
        keys_at, values_at = self._find(layer)
        at.rows[at.numbers, keys_at] = self._keys[layer][at.pages]
        at.rows[at.numbers, values_at] = self._values[layer][at.pages]

    def finish(self) -> None:
        """Every call has returned."""

    def fence(self, layer: int) -> None:
        """The layer was there before it was said to be."""

    def _find(self, layer: int) -> tuple[slice, slice]:
        """Where K and V of the layer lie in a row, in words."""
        size = self._places.rows.itemsize
        cuts = self._layout.keys_at(layer), self._layout.values_at(layer)
        keys_at, values_at = (slice(cut.start // size, cut.stop // size) for cut in cuts)
        return keys_at, values_at


def choose_word(layout: PageLayout) -> np.dtype[Any]:
    """The largest whole number of which K and V of a layer are made: bytes move one by one."""
    is_whole = layout.key_bytes % WORD_BYTES == layout.value_bytes % WORD_BYTES == 0
    return np.dtype(np.uint64 if is_whole else np.uint8)


def as_page_rows(buffer: Any, row_bytes: int) -> Any:
    """A pool's buffer of one layer as bytes, a row a page, without what does not fill a page.

    The memory is the buffer's own.
    """
    flat = buffer.view(-1).view(torch.uint8)
    return flat[: flat.numel() // row_bytes * row_bytes].view(-1, row_bytes)
