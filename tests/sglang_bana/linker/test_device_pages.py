"""Through a CUDA device: the same bits, and a forward pass that waits for each layer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bana.radix_global.arena import Arena
from bana.radix_global.arena_layout import ArenaLayout
from bana.radix_global.arena_view import ArenaView
from bana.radix_global.link import Slot
from sglang_bana.engine.linker.device_pages import ArenaPins, DevicePages

from .stand import Pool, layout_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
EPOCH = 7


class MappedArena:
    """An arena in shared memory, as a client maps it."""

    def __init__(self, path: Path, slot_bytes: int) -> None:
        self._arena = Arena(path, ArenaLayout(16, slot_bytes), EPOCH)
        self._mapped: ArenaView | None = ArenaView(path)

    def take(self, count: int) -> list[Slot]:
        taken = self._arena.take(count)
        return [Slot(number, self._arena.generation(number), EPOCH) for number in taken]

    def arena(self, epoch: int) -> ArenaView | None:
        return self._mapped if epoch == EPOCH else None

    def view(self, slot: Slot) -> memoryview | None:
        return None if self._mapped is None else self._mapped.view(slot.number)

    def lose(self) -> None:
        self._mapped = None

    def close(self) -> None:
        self._arena.close()


@pytest.fixture
def store() -> Iterator[Any]:
    mapped = MappedArena(
        Path(f"/dev/shm/bana-test-{os.getpid()}-pages.arena"), layout_of().page_bytes
    )
    yield mapped
    mapped.close()


def on_device(pool: Pool) -> Pool:
    pool.k_buffer = [buffer.cuda() for buffer in pool.k_buffer]
    pool.v_buffer = [buffer.cuda() for buffer in pool.v_buffer]
    return pool


def test_pages_come_back_bit_by_bit(store: Any) -> None:
    layout = layout_of()
    source, target = (on_device(Pool(layout, 9, seed=seed)) for seed in (1, 2))
    before = [target.page(page) for page in range(9)]
    pins = ArenaPins(store)
    saving, loading = (
        DevicePages(pool.k_buffer, pool.v_buffer, layout, pins) for pool in (source, target)
    )
    slots = store.take(3)
    copy = saving.begin(store, [7, 0, 4], slots)
    assert copy is not None
    for layer in range(layout.layers):
        copy.save_layer(layer)
    copy.finish()

    copy = loading.begin(store, [1, 8, 3], slots)
    assert copy is not None
    for layer in range(layout.layers):
        copy.load_layer(layer)
        copy.fence(layer)
    torch.cuda.synchronize()
    moved = {1: 7, 8: 0, 3: 4}
    for page in range(9):
        expected = source.page(moved[page]) if page in moved else before[page]
        assert all(map(torch.equal, target.page(page), expected))
    saving.close()
    loading.close()


def test_there_is_no_copy_where_the_arena_is_gone(store: Any) -> None:
    layout = layout_of()
    pool = on_device(Pool(layout, 4))
    mover = DevicePages(pool.k_buffer, pool.v_buffer, layout, ArenaPins(store))
    slots = store.take(1)
    store.lose()
    assert mover.begin(store, [0], slots) is None
    mover.close()
