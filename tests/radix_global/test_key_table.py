"""The table finds what a dictionary finds, whatever shares a bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.radix_global.key_table import NO_ROW, KeyTable, read_words
from bana.slo.errors import StoreError

# A few words, so that keys share buckets, and whole first or second halves; zero is a key too.
WORDS = st.sampled_from([0, 1, 2, 3, 2**32, 2**63])
KEYS = st.tuples(WORDS, WORDS).map(lambda words: b"".join(w.to_bytes(8, "little") for w in words))
STEPS = st.lists(
    st.tuples(st.just("add"), st.lists(KEYS, unique=True, max_size=6))
    | st.tuples(st.just("remove"), st.lists(KEYS, unique=True, max_size=3)),
    max_size=20,
)
MAX_ROWS = 12


@given(STEPS, st.lists(KEYS, max_size=8))
def test_it_finds_what_a_dictionary_finds(
    steps: list[tuple[str, list[bytes]]], asked: list[bytes]
) -> None:
    table = KeyTable(MAX_ROWS)
    known: dict[bytes, int] = {}
    for step, keys in steps:
        if step == "add":
            fresh = [key for key in keys if key not in known][: table.free_rows]
            rows = table.add(read_words(b"".join(fresh))).tolist()
            known |= zip(fresh, rows, strict=True)
        else:
            for key in known.keys() & set(keys):
                table.remove(known.pop(key))
        found = table.find(read_words(b"".join(asked))).tolist()
        assert found == [known.get(key, NO_ROW) for key in asked]
        assert table.free_rows == MAX_ROWS - len(known)
        rows = table.find(read_words(b"".join(known)))
        assert rows.tolist() == list(known.values())
        assert table.keys_of(rows) == b"".join(known)
    assert len(set(known.values()) | {NO_ROW}) == len(known) + 1


def test_half_a_key_is_refused() -> None:
    with pytest.raises(StoreError, match="whole number of keys"):
        read_words(bytes(24))
