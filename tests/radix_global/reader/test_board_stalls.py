"""A read that stalls, fails late or is given up: who reads its page, and into which slot."""

from __future__ import annotations

from typing import Any

import pytest

from bana.radix_global.reader.board import Board
from bana.radix_global.reader.options import ReaderOptions
from bana.radix_global.reader.policies import Completion, CompletionOptions
from bana.radix_global.reader.wanting import ReadEnd, TierFailure
from bana.radix_global.stores.store import ReadOutcome

from .boards import SPARES, begin, finish, make_board, take_one


def test_an_overdue_page_is_read_elsewhere_into_another_slot(make_wants: Any) -> None:
    board = make_board(stall_after_s=0.5)
    board.want(make_wants([3]), 0.0)
    stalled = begin(board, 1)
    assert board.look_at_s == 0.5
    board.expire(0.5)
    again = begin(board, 2, 0.5)
    assert again.slot in SPARES
    finish(board, 2, 0.6)
    ended = take_one(board)
    assert (ended.slot, ended.end, ended.tier) == (again.slot, ReadEnd.READ, 2)
    # The stalled read may still write into its slot, and nobody else has it until it returns.
    assert stalled.slot == 3
    finish(board, 1, 30.0)
    assert board.take_outcomes() == []


def test_a_stalled_read_that_returns_first_still_wins(make_wants: Any) -> None:
    board = make_board(stall_after_s=0.5)
    board.want(make_wants([3]), 0.0)
    begin(board, 1)
    board.expire(0.5)
    begin(board, 2, 0.5)
    finish(board, 1, 0.7)
    ended = take_one(board)
    assert (ended.slot, ended.tier) == (3, 1)
    finish(board, 2, 0.8)
    assert board.take_outcomes() == []


def test_a_stalled_read_that_fails_leaves_the_other_attempt_alone(make_wants: Any) -> None:
    board = make_board(stall_after_s=0.5)
    board.want(make_wants([3]), 0.0)
    begin(board, 1)
    board.expire(0.5)
    begin(board, 2, 0.5)
    finish(board, 1, 0.6, ReadOutcome.FAILED)
    assert board.take_outcomes() == []
    finish(board, 2, 0.7)
    assert take_one(board).failures == (TierFailure(1, ReadOutcome.FAILED),)


def test_what_a_stalled_lane_had_claimed_is_the_most_urgent_again(make_wants: Any) -> None:
    board = make_board(lot_pages=4, stall_after_s=0.5)
    board.want(make_wants(range(40)), 0.0)
    assert begin(board, 1).slot == 0
    assert begin(board, 2, 0.4).slot == 4
    board.take_wakes()
    board.expire(0.5)
    assert board.take_wakes() == 0b110
    assert board.report(0.5)[0].overdue_pages == 1
    finish(board, 2, 0.6)
    order = []
    for _ in range(8):
        order.append(begin(board, 2, 0.6).key[-1])
        finish(board, 2, 0.6)
    assert order == [5, 6, 7, 0, 1, 2, 3, 8]


def test_a_page_of_one_stalled_tier_waits_until_its_deadline(make_wants: Any) -> None:
    board = make_board(stall_after_s=0.5)
    board.want(make_wants([3], 0b10, deadline_s=4.0), 0.0)
    begin(board, 1)
    board.expire(0.5)
    assert board.take_outcomes() == []
    assert board.look_at_s == 4.0
    board.expire(4.0)
    ended = take_one(board)
    assert (ended.end, ended.slot in SPARES) == (ReadEnd.LATE, True)


def test_a_tier_that_turns_up_helps_a_page_that_is_stuck(make_wants: Any) -> None:
    board = make_board(stall_after_s=0.5)
    board.want(make_wants([3], 0b10), 0.0)
    begin(board, 1)
    board.expire(0.5)
    board.want(make_wants([3], 0b100), 0.6)
    assert begin(board, 2, 0.6).slot in SPARES


def test_a_slow_tier_is_not_a_stalled_one(make_wants: Any) -> None:
    board = make_board({1: 1}, stall_after_s=0.5, stall_factor=4.0)
    board.want(make_wants(range(60), 0b10), 0.0)
    now_s, overdue = 0.0, []
    for _ in range(60):
        begin(board, 1, now_s)
        board.expire(now_s + 0.8)
        overdue.append(board.report(now_s)[0].overdue_pages)
        now_s += 0.8
        finish(board, 1, now_s)
    # The first reads teach it what is usual.
    assert sum(overdue) < 5
    assert overdue[-1] == 0


def test_cancelling_answers_at_once_with_a_slot_that_nobody_touches(make_wants: Any) -> None:
    board = make_board()
    waiting, under_way = make_wants([1, 2])
    board.want([under_way], 0.0)
    begin(board, 1)
    board.want([waiting], 0.0)
    assert board.cancel(waiting.key)
    assert board.cancel(under_way.key)
    assert not board.cancel(under_way.key)
    ends = {outcome.key: outcome for outcome in board.take_outcomes()}
    assert ends[waiting.key].slot == 1
    assert ends[under_way.key].slot in SPARES
    assert {end.end for end in ends.values()} == {ReadEnd.CANCELLED}
    finish(board, 1)
    assert board.take_outcomes() == []
    assert board.next_read(board.lanes(1)[0], 0.0) is None


def _cancel_under_way(board: Board, key: bytes, now_s: float) -> None:
    begin(board, 1, now_s)
    board.cancel(key)
    finish(board, 1, now_s)


def _win_before_another_begins(board: Board, key: bytes, now_s: float) -> None:
    begin(board, 1, now_s)
    board.expire(now_s + 1)
    finish(board, 1, now_s + 2)


def _win_over_a_stalled_one(board: Board, key: bytes, now_s: float) -> None:
    begin(board, 1, now_s)
    board.expire(now_s + 1)
    begin(board, 2, now_s + 1)
    finish(board, 2, now_s + 2)
    finish(board, 1, now_s + 3)


def _fail_beside_another(board: Board, key: bytes, now_s: float) -> None:
    begin(board, 1, now_s)
    board.expire(now_s + 1)
    begin(board, 2, now_s + 1)
    finish(board, 1, now_s + 2, ReadOutcome.FAILED)
    finish(board, 2, now_s + 3, ReadOutcome.FAILED)


@pytest.mark.parametrize(
    "course",
    [_cancel_under_way, _win_before_another_begins, _win_over_a_stalled_one, _fail_beside_another],
)
def test_no_course_of_a_page_costs_a_slot(course: Any, make_wants: Any) -> None:
    policy = Completion(CompletionOptions(leave_factor=0))
    options = ReaderOptions(lot_pages=1, stall_after_s=0.5, stall_factor=1)
    board = Board({1: 1, 2: 1}, (900, 901), policy, options)
    theirs = {900, 901}
    for turn in range(20):
        (want,) = make_wants([turn])
        theirs.add(want.slot)
        board.want([want], 10.0 * turn)
        course(board, want.key, 10.0 * turn)
        theirs.remove(take_one(board).slot)
        assert len(theirs) == 2
