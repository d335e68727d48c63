"""The queue gives rows by their last use, although uses do not tell it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bana.radix_global.columns import Column
from bana.radix_global.leaf_queue import LeafQueue

ROWS = 6
STEPS = st.lists(st.tuples(st.sampled_from(["push", "use", "pop"]), st.integers(0, ROWS - 1)))


@given(STEPS)
def test_the_least_recently_used_row_comes_first(steps: list[tuple[str, int]]) -> None:
    stamps = Column(ROWS, np.int64)
    stamps.many[:] = range(ROWS)
    queue = LeafQueue(ROWS, stamps)
    queued: set[int] = set()
    for now, (step, row) in enumerate(steps, start=ROWS):
        if step == "push":
            queue.push(row)
            queued.add(row)
        elif step == "use":
            stamps.one[row] = now
        else:
            oldest = min(queued, key=lambda r: stamps.one[r], default=None)
            assert queue.pop() == oldest
            queued.discard(-1 if oldest is None else oldest)
    left = [queue.pop() for _ in range(len(queued))]
    assert left == sorted(queued, key=lambda r: stamps.one[r])
    assert queue.pop() is None
