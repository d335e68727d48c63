"""Live entries come in order, void ones never, and do not pile up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bana.radix_global.reader.lazy_heap import FEWEST_ENTRIES, Key, LazyHeap

STEPS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 20)), max_size=300)


@given(STEPS)
def test_an_item_counts_at_its_last_key_only(steps: list[tuple[int, int]]) -> None:
    current: dict[str, Key] = {}
    heap: LazyHeap[str] = LazyHeap(lambda key, item: current.get(item) == key)
    items = [f"item {number}" for number in range(10)]
    for turn, (number, key) in enumerate(steps):
        current[items[number]] = (key, turn)
        heap.push(current[items[number]], items[number])
        assert len(heap) <= 2 * 10 + FEWEST_ENTRIES
    expected = sorted(current, key=lambda item: current[item])
    popped = []
    while (item := heap.pop()) is not None:
        popped.append(item)
        del current[item]
    assert popped == expected
    assert heap.peek() is None


def test_void_entries_are_thrown_away_in_time() -> None:
    current = (0.0,)
    heap: LazyHeap[str] = LazyHeap(lambda key, _: key == current)
    for turn in range(1_000):
        current = (float(turn),)
        heap.push(current, "the one")
        assert len(heap) <= 2 + FEWEST_ENTRIES
    assert heap.pop() == "the one"
    assert heap.pop() is None
