from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.eval.workload.prefix_tree import PrefixTree

sequences = st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=30)


def count_common(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@settings(deadline=None)
@given(sequences)
def test_it_counts_what_the_best_earlier_sequence_began_with(given_lists: list[list[int]]) -> None:
    tree = PrefixTree()
    earlier: list[list[int]] = []
    for units in given_lists:
        best = max((count_common(units, e) for e in earlier), default=0)

        assert tree.insert(np.array(units, dtype=np.int32)) == best
        earlier.append(units)


def test_what_was_inserted_is_not_changed_from_outside() -> None:
    tree = PrefixTree()
    units = np.arange(5, dtype=np.int32)
    tree.insert(units)
    units[:] = 9

    assert tree.insert(np.arange(5, dtype=np.int32)) == 5
