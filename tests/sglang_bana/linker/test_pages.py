"""What goes through a slot of the arena comes back bit by bit, and touches nothing else."""

from __future__ import annotations

import pytest
import torch

from bana.radix_global.link import Slot
from bana.radix_global.naive_store import NaiveStore
from sglang_bana.engine.linker.layout import PageLayout
from sglang_bana.engine.linker.pages import HostPages, as_page_rows

from .stand import Pool, layout_of

# The last one is no whole number of words of eight bytes.
SHAPES = [(1, 8, 8), (3, 64, 64), (2, 16, 48), (1, 1, 3)]


def mover_of(pool: Pool) -> HostPages:
    return HostPages(pool.k_buffer, pool.v_buffer, pool.layout)


def copy_all(pool: Pool, store: NaiveStore, pages: list[int], slots: list[Slot]) -> None:
    copy = mover_of(pool).begin(store, pages, slots)
    assert copy is not None
    for layer in range(pool.layout.layers):
        copy.save_layer(layer)
    copy.finish()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("page_tokens", [2, 16, 64])
@pytest.mark.parametrize(("heads", "key_dim", "value_dim"), SHAPES)
def test_pages_come_back_bit_by_bit(
    dtype: torch.dtype, page_tokens: int, heads: int, key_dim: int, value_dim: int
) -> None:
    layout = PageLayout(
        layers=3,
        page_tokens=page_tokens,
        heads=heads,
        key_dim=key_dim,
        value_dim=value_dim,
        item_bytes=dtype.itemsize,
    )
    source, target = (Pool(layout, 9, dtype, seed) for seed in (1, 2))
    store = NaiveStore(6, layout.page_bytes, lambda: None)
    slots = store.take_slots(3)
    assert slots is not None
    before = [target.page(page) for page in range(9)]
    copy_all(source, store, [7, 0, 4], list(slots))

    copy = mover_of(target).begin(store, [1, 8, 3], slots)
    assert copy is not None
    for layer in range(layout.layers):
        copy.load_layer(layer)

    moved = {1: 7, 8: 0, 3: 4}
    for page in range(9):
        expected = source.page(moved[page]) if page in moved else before[page]
        assert all(map(torch.equal, target.page(page), expected))


def test_odd_bit_patterns_survive() -> None:
    layout = layout_of(layers=1)
    source, target = Pool(layout, 2, seed=1), Pool(layout, 2, seed=2)
    # Not-a-numbers with a message, infinities and denormals.
    bits = torch.tensor([0x7FC00001, 0x7F800000, 0x00000001, -0x80000000], dtype=torch.int64)
    source.k_buffer[0].view(torch.int32).view(-1)[:4] = bits.to(torch.int32)
    store = NaiveStore(1, layout.page_bytes, lambda: None)
    slots = store.take_slots(1)
    assert slots is not None
    copy_all(source, store, [0], list(slots))
    copy = mover_of(target).begin(store, [1], slots)
    assert copy is not None
    copy.load_layer(0)
    assert all(map(torch.equal, target.page(1), source.page(0)))


def test_a_layer_is_one_piece_of_its_slot_and_the_page_fills_it() -> None:
    layout = layout_of()
    cuts = [cut for i in range(layout.layers) for cut in (layout.keys_at(i), layout.values_at(i))]
    assert [cut.start for cut in cuts] == [0, *(cut.stop for cut in cuts[:-1])]
    assert cuts[-1].stop == layout.page_bytes


def test_what_fills_no_page_is_no_row() -> None:
    buffer = torch.arange(11, dtype=torch.uint8).view(11, 1, 1)
    rows = as_page_rows(buffer, 4)
    assert rows.shape == (2, 4)
    rows[0, 0] = 99
    assert buffer[0, 0, 0] == 99


def test_there_is_no_copy_where_the_arena_is_gone() -> None:
    layout = layout_of()
    store = NaiveStore(2, layout.page_bytes, lambda: None)
    slots = store.take_slots(1)
    assert slots is not None
    store.lose()
    assert mover_of(Pool(layout, 2)).begin(store, [0], slots) is None


def test_there_is_no_copy_from_slots_that_are_not_of_one_arena() -> None:
    layout = layout_of()
    store = NaiveStore(2, layout.page_bytes, lambda: None)
    mover, known = mover_of(Pool(layout, 2)), Slot(0, 1, 1)
    assert mover.begin(store, [0, 1], [known, Slot(1, 1, 2)]) is None
    assert mover.begin(store, [0, 1], [known, Slot(2, 1, 1)]) is None
    assert mover.begin(store, [0, 1], [known, Slot(1, 1, 1)]) is not None
