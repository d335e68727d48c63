"""Every side reads the same pages, and a page that is not the right one ends the comparison."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sglang_bana.engine.peers.reading import (
    PageShape,
    ReadPlan,
    WrongPage,
    check_pages,
    time_portions,
)

SHAPE = PageShape(layers=2, heads=2, head_dim=8)


def _plan(pages: int = 9) -> ReadPlan:
    size = SHAPE.page_bytes
    return ReadPlan(SHAPE, pages * size + size // 2, 3 * size, max_threads=2, seed=5)


def test_a_page_has_the_keys_and_values_of_its_tokens() -> None:
    assert SHAPE.page_bytes == 2 * 2 * 16 * 2 * 8 * 2
    assert PageShape(layers=30, heads=3, head_dim=64).page_bytes == 368_640
    assert (_plan().pages, _plan().slots) == (9, 3)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_the_threads_read_every_page_once_in_an_order_that_repeats(threads: int) -> None:
    portions = _plan().list_portions(threads)
    assert len(portions) == threads
    read = sorted(number for portion in portions for number in portion)
    assert read == list(range(9)) != portions[0]
    assert portions == _plan().list_portions(threads)


def test_no_two_pages_are_alike() -> None:
    contents = list(_plan().list_contents())
    assert len(set(contents)) == len(contents) == 9
    assert {len(content) for content in contents} == {SHAPE.page_bytes}


@pytest.mark.parametrize("wrong", [0, 4, 8])
def test_a_wrong_page_is_found(wrong: int) -> None:
    contents = list(_plan().list_contents())
    check_pages(_plan(), contents.__getitem__)
    contents[wrong] = contents[wrong - 1]
    with pytest.raises(WrongPage, match=f"page {wrong} "):
        check_pages(_plan(), contents.__getitem__)


def test_all_threads_read_their_portions_and_the_time_is_taken() -> None:
    read: list[tuple[int, int]] = []

    def note(thread: int, numbers: Sequence[int]) -> None:
        read.extend((thread, number) for number in numbers)

    assert time_portions(note, [[1, 2], [3]]) > 0
    assert sorted(read) == [(0, 1), (0, 2), (1, 3)]


def test_a_fault_in_one_thread_is_raised_and_leaves_none_waiting() -> None:
    def fail(thread: int, numbers: Sequence[int]) -> None:
        if thread == 1:
            raise WrongPage(f"page {numbers[0]}")

    with pytest.raises(WrongPage, match="page 3"):
        time_portions(fail, [[1, 2], [3], [4]])
