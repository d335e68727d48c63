from __future__ import annotations

import pickle
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.eval.workload.token_runs import (
    Run,
    Span,
    TokenIds,
    TokenRange,
    derive_run,
    disguise_run,
    draw_values,
)
from bana.eval.workload.words import CHARS_PER_WORD, WORDS, spell

RUN = derive_run(5, 0)
RANGE = TokenRange(100, 5000)

spans = st.lists(
    st.builds(
        Span,
        st.builds(derive_run, st.just(9), st.integers(0, 5)),
        st.integers(0, 50),
        st.integers(1, 60),
    ),
    max_size=8,
)


@settings(deadline=None)
@given(spans, st.integers(2, 2**31 - 1))
def test_spans_join_and_every_value_is_its_runs_at_its_position(
    parts: list[Span], values: int
) -> None:
    whole = draw_values(parts, values)
    runs = {part.run: draw_values([Span(part.run, 0, 110)], values) for part in parts}
    joined = [runs[part.run][part.start : part.start + part.count] for part in parts]

    assert whole.tolist() == [value for part in joined for value in part.tolist()]
    assert all(0 <= value < values for value in whole.tolist())


def test_values_are_spread_evenly() -> None:
    values = draw_values([Span(RUN, 1, 100_000)], 50)
    counts = np.bincount(values, minlength=50)

    assert float(((counts - 2000) ** 2 / 2000).sum()) < 85.4  # 0.999 quantile, 49 degrees
    assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 0.015


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(2, 40_000), st.integers(0, 30_000))
def test_runs_of_different_first_differ_at_once(base: int, values: int, index: int) -> None:
    pair = [draw_values([Span(derive_run(base, i), 0, 1)], values)[0] for i in (index, index + 1)]

    assert pair[0] != pair[1]


def test_a_disguised_run_is_another_one_and_always_the_same() -> None:
    other = disguise_run(RUN, 5000)

    assert other == disguise_run(RUN, 5000)
    same = draw_values([Span(RUN, 0, 1000)], 5000) == draw_values([Span(other, 0, 1000)], 5000)
    assert not same[0]
    assert same.mean() < 0.01


@settings(deadline=None)
@given(spans.filter(bool))
def test_token_ids_are_a_sequence_in_their_range(parts: list[Span]) -> None:
    ids = TokenIds(tuple(parts), RANGE)
    listed = list(ids)

    assert isinstance(ids, Sequence)
    assert len(ids) == len(listed)
    assert ids[0] == listed[0]
    assert ids[-3:] == listed[-3:]
    assert all(type(i) is int and 100 <= i < 5100 for i in listed)
    assert ids == pickle.loads(pickle.dumps(ids))
    assert msgspec.json.decode(msgspec.json.encode({"input_ids": list(ids)})) == {
        "input_ids": listed
    }


def test_token_ids_past_the_end_are_refused() -> None:
    with pytest.raises(IndexError):
        TokenIds((Span(RUN, 0, 3),), RANGE)[3]


def test_equal_token_ids_are_equal_and_hash_alike() -> None:
    one, same = (TokenIds((Span(RUN, 0, 4),), RANGE) for _ in range(2))

    assert one == same
    assert hash(one) == hash(same)
    assert one != TokenIds((Span(RUN, 1, 4),), RANGE)
    assert one != list(one)


def test_words_are_of_one_length_and_differ() -> None:
    assert len(set(WORDS)) == len(WORDS)
    assert {len(word) for word in WORDS} == {CHARS_PER_WORD - 1}


@settings(deadline=None)
@given(spans.filter(bool), st.integers(1, 20))
def test_longer_spans_spell_text_that_grows(parts: list[Span], more: int) -> None:
    text = spell(parts)

    assert len(text.split(" ")) == sum(part.count for part in parts)
    assert spell([*parts, Span(Run(7, 0), 0, more)]).startswith(text + " ")
