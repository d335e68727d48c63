"""The prefix index agrees with a plain search while it is not full, and stays bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sglang_bana.router.prefix_index import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    PrefixIndex,
    hash_prefixes,
)

BLOCKS = st.lists(st.sampled_from([b"a", b"b"]), max_size=5).map(
    lambda letters: b"".join(letter * BLOCK_BYTES for letter in letters)
)
SENT = st.lists(st.tuples(BLOCKS, st.sampled_from(["x", "y"])), max_size=12)


def _common_blocks(left: bytes, right: bytes) -> int:
    count = 0
    while (count + 1) * BLOCK_BYTES <= min(len(left), len(right)) and left[
        : (count + 1) * BLOCK_BYTES
    ] == right[: (count + 1) * BLOCK_BYTES]:
        count += 1
    return count


@given(SENT, BLOCKS)
def test_matches_are_the_longest_common_prefix(sent: list[tuple[bytes, str]], asked: bytes) -> None:
    index = PrefixIndex(["x", "y"], max_pages=10_000)
    for prompt, instance in sent:
        index.insert(hash_prefixes(prompt), instance)
    found = index.match(hash_prefixes(asked))
    for name in ("x", "y"):
        depths = [_common_blocks(prompt, asked) for prompt, owner in sent if owner == name]
        assert found[name] == max(depths, default=0)


@given(SENT, st.integers(1, 6))
def test_it_never_exceeds_its_bound_and_counts_what_it_holds(
    sent: list[tuple[bytes, str]], bound: int
) -> None:
    index = PrefixIndex(["x", "y"], max_pages=bound)
    for prompt, instance in sent:
        index.insert(hash_prefixes(prompt), instance)
        assert len(index) <= bound
        held = sum(index.indexed_tokens(name) for name in ("x", "y"))
        assert len(index) * BLOCK_TOKENS <= held <= 2 * len(index) * BLOCK_TOKENS


@given(SENT)
def test_a_forgotten_instance_matches_nothing(sent: list[tuple[bytes, str]]) -> None:
    index = PrefixIndex(["x", "y"], max_pages=10_000)
    for prompt, instance in sent:
        index.insert(hash_prefixes(prompt), instance)
    before = {prompt: index.match(hash_prefixes(prompt))["y"] for prompt, _ in sent}
    index.forget_instance("x")
    assert index.indexed_tokens("x") == 0
    for prompt, _ in sent:
        found = index.match(hash_prefixes(prompt))
        assert found == {"x": 0, "y": before[prompt]}


def test_a_tail_shorter_than_a_block_is_not_indexed() -> None:
    assert hash_prefixes(b"x" * (BLOCK_BYTES - 1)) == []
    assert len(hash_prefixes(b"x" * (2 * BLOCK_BYTES + 5))) == 2
