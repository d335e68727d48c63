"""The tree of all prompts, against comparing them one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.eval.requests import Offered, Prompt
from bana.eval.simulator.prefixes import ROOT, PrefixPlan, plan_nothing, plan_prefixes

Make = Callable[..., Any]
PROMPTS = st.lists(st.lists(st.integers(0, 1), max_size=14), min_size=1, max_size=8)


def offer(ids: list[int], index: int) -> Offered:
    return Offered(index, 0.0, Prompt(token_ids=ids), len(ids), 1)


def plan(prompts: list[list[int]], page: int) -> PrefixPlan:
    return plan_prefixes([offer(ids, index) for index, ids in enumerate(prompts)], page)


def count_common_pages(one: list[int], other: list[int], page: int) -> int:
    pages = 0
    while (pages + 1) * page <= min(len(one), len(other)) and one[: (pages + 1) * page] == other[
        : (pages + 1) * page
    ]:
        pages += 1
    return pages


@given(PROMPTS, st.integers(1, 4))
def test_paths_share_what_prompts_share(prompts: list[list[int]], page: int) -> None:
    made = plan(prompts, page)
    for ids, path in zip(prompts, made.paths, strict=True):
        assert sum(made.pages[node] for node in path) == len(ids) // page
    for first, one in enumerate(prompts):
        for second, other in enumerate(prompts[:first]):
            common = set(made.paths[first]) & set(made.paths[second])
            shared = sum(made.pages[node] for node in common)
            assert shared == count_common_pages(one, other, page)


@given(PROMPTS, st.integers(1, 4))
def test_it_is_one_tree_and_says_what_is_shared(prompts: list[list[int]], page: int) -> None:
    made = plan(prompts, page)
    for path in made.paths:
        for above, node in zip((ROOT, *path), path, strict=False):
            assert made.parents[node] == above
            assert made.pages[node] > 0
            users = sum(node in other for other in made.paths)
            assert made.shared[node] == (users > 1)


def test_text_is_cut_by_the_bytes_of_its_tokens() -> None:
    texts = ["abcdefgh" * 4, "abcdefgh" * 2 + "ABCDEFGH" * 2]
    requests = [Offered(i, 0.0, Prompt(text=text), 8, 1) for i, text in enumerate(texts)]
    made = plan_prefixes(requests, 2)
    # Four bytes a token, two tokens a page: two of four pages are shared.
    assert [sum(made.pages[n] for n in path) for path in made.paths] == [4, 4]
    common = set(made.paths[0]) & set(made.paths[1])
    assert sum(made.pages[node] for node in common) == 2


def test_an_engine_without_a_cache_has_no_paths() -> None:
    made = plan_nothing([offer([1, 2, 3], 0)], 1)
    assert (made.paths, made.is_cached) == (((),), False)


@pytest.mark.parametrize("page", [1, 16])
def test_later_prompts_change_no_earlier_path_in_length(page: int) -> None:
    ids = list(range(64))
    assert len(plan([ids], page).paths[0]) == 1
    assert len(plan([ids, ids[:32] + [99] * 32], page).paths[0]) == 2
