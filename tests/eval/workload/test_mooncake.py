from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.eval.workload.conversations import Conversation
from bana.eval.workload.mooncake import BlockScale, compose_blocks
from bana.eval.workload.token_runs import Span, TokenIds, TokenRange
from bana.eval.workload.trace_rows import TraceRow
from bana.slo.errors import ConfigError

BLOCK = 8
RANGE = TokenRange(10, 50)


def ids_of(conversation: Conversation) -> list[int]:
    spans: list[Span] = []
    for piece in conversation.pieces(0):
        assert not isinstance(piece.content, str)
        spans.extend(piece.content)
    return list(TokenIds(tuple(spans), RANGE))


def compose(rows: Sequence[TraceRow], scale: float = 1.0, base: int = 3) -> list[list[int]]:
    return [ids_of(c) for c in compose_blocks(rows, BlockScale(BLOCK, scale), base)]


def row(ids: Sequence[int], last_tokens: int = BLOCK) -> TraceRow:
    return TraceRow(0.0, BLOCK * (len(ids) - 1) + last_tokens, 3, tuple(ids))


@st.composite
def prefix_hashed_rows(draw: st.DrawFn) -> list[TraceRow]:
    """Prompts over few words, with ids as hashes of whole prefixes: one id, one predecessor."""
    known: dict[tuple[int, ...], int] = {(): 0}
    rows = []
    for words in draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=12)):
        prefixes = [tuple(words[: i + 1]) for i in range(len(words))]
        ids = [known.setdefault(prefix, len(known)) for prefix in prefixes]
        rows.append(row(ids, draw(st.integers(1, BLOCK))))
    return rows


def count_common(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def shared_by_ids(one: TraceRow, other: TraceRow, block: int, scale: float) -> int:
    """What the ids of two rows say they share, with `block` tokens a whole block."""
    blocks = count_common(one.hash_ids, other.hash_ids)
    lengths = [
        block * (len(r.hash_ids) - 1)
        + max(1, -int(-(r.input_tokens - BLOCK * (len(r.hash_ids) - 1)) * scale // 1))
        for r in (one, other)
    ]
    return min(blocks * block, *lengths)


@settings(deadline=None)
@given(prefix_hashed_rows(), st.sampled_from([1.0, 0.5, 2.0, 0.125]))
def test_prompts_share_exactly_what_their_ids_say(rows: list[TraceRow], scale: float) -> None:
    prompts = compose(rows, scale)
    block = int(BLOCK * scale)

    for (one, ids), (other, other_ids) in pairwise(list(zip(rows, prompts, strict=True))):
        expected = shared_by_ids(one, other, block, scale)
        assert count_common(ids, other_ids) == expected


def test_a_block_is_the_same_tokens_wherever_it_stands_and_whatever_came_before() -> None:
    one, other = compose([row([5, 6, 7]), row([5, 9])])

    assert one[:BLOCK] == other[:BLOCK]
    assert compose([row([5, 9]), row([5, 6, 7])]) == [other, one]


def test_a_partial_block_begins_the_whole_one() -> None:
    partial, whole = compose([row([1, 2], 3), row([1, 2, 3])])

    assert partial == whole[: BLOCK + 3]


def test_ids_far_apart_differ_at_their_first_token() -> None:
    prompts = compose([row([hash_id]) for hash_id in (3, 3 + RANGE.count, 3 + 2**40)])

    assert len({ids[0] for ids in prompts}) == 3


def test_other_seeds_give_other_tokens() -> None:
    assert compose([row([1, 2])], base=3) != compose([row([1, 2])], base=4)


def test_a_scaled_block_must_stay_whole() -> None:
    with pytest.raises(ConfigError, match=r"length_scale=0\.3.*take 0\.25 \(2 tokens a block\)"):
        compose([row([1])], 0.3)
    with pytest.raises(ConfigError, match=r"take 0\.125 \(1 tokens a block\)"):
        compose([row([1])], 0.01)


def test_answers_are_scaled_as_prompts_are() -> None:
    scaled = compose_blocks([TraceRow(0.0, 5, 9, (1,))], BlockScale(BLOCK, 0.5), 3)[0]

    assert scaled.turns[0].output_tokens == 5
    assert sum(piece.tokens for piece in scaled.pieces(0)) == 3
