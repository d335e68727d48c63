"""What the board decides: order, lots, stalls, failures, deadlines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from bana.radix_global.reader.board import Board
from bana.radix_global.reader.options import ReaderOptions
from bana.radix_global.reader.policies import (
    Completion,
    CompletionOptions,
    OpenPage,
    TierChoice,
    TierLoad,
)
from bana.radix_global.reader.wanting import PageRead, PageWant, ReadEnd, TierFailure, Wanted
from bana.radix_global.stores.store import ReadOutcome
from bana.slo.errors import ConfigError, StoreError

from .boards import COMPLETION, SPARES, begin, finish, make_board, take_one


def test_the_most_urgent_page_goes_first_and_a_prefix_in_its_order(make_wants: Any) -> None:
    board = make_board({1: 1})
    late = make_wants([0, 1], 0b10, due_s=5.0)
    soon = make_wants([2, 3], 0b10, due_s=2.0)
    board.want([*reversed(late), *reversed(soon)], 0.0)
    order = []
    for _ in range(4):
        order.append(begin(board, 1).slot)
        finish(board, 1)
    assert order == [2, 3, 0, 1]


def test_a_page_is_read_once_for_all_who_want_it(make_wants: Any) -> None:
    board = make_board()
    (want,) = make_wants([7])
    assert board.want([want, want], 0.0) == (Wanted.TAKEN, Wanted.KNOWN)
    begin(board, 1)
    assert board.want([want], 0.0) == (Wanted.KNOWN,)
    assert board.next_read(board.lanes(2)[0], 0.0) is None
    finish(board, 1)
    assert take_one(board) == PageRead(want.key, 7, ReadEnd.READ, 1, ())


def test_wanted_again_it_is_as_urgent_as_the_more_urgent_and_lives_as_long(make_wants: Any) -> None:
    board = make_board({1: 1})
    first, second = make_wants([1, 2], 0b10, deadline_s=10.0)
    board.want([first, second], 0.0)
    (again,) = make_wants([2], 0b10, due_s=0.5, deadline_s=20.0)
    board.want([again], 0.0)
    assert begin(board, 1).key == second.key
    board.expire(10.0)
    assert take_one(board).key == first.key
    assert board.look_at_s == 20.0


def test_hurry_moves_a_page_up_and_never_back(make_wants: Any) -> None:
    board = make_board({1: 1})
    first, second = make_wants([1, 2], 0b10)
    board.want([first, second], 0.0)
    assert board.hurry(second.key, 0.5)
    assert board.hurry(second.key, 9.0)
    assert begin(board, 1).key == second.key
    assert not board.hurry(bytes(16), 0.0)


def test_a_bad_read_goes_to_the_next_tier_and_says_what_was_wrong(make_wants: Any) -> None:
    board = make_board()
    (want,) = make_wants([3])
    board.want([want], 0.0)
    begin(board, 2)
    finish(board, 2, outcome=ReadOutcome.CORRUPT)
    assert board.take_outcomes() == []
    assert board.next_read(board.lanes(2)[0], 0.0) is None
    assert begin(board, 1).slot == 3
    finish(board, 1)
    failures = (TierFailure(2, ReadOutcome.CORRUPT),)
    assert take_one(board) == PageRead(want.key, 3, ReadEnd.READ, 1, failures)


def test_a_page_that_no_tier_gives_has_failed_with_every_reason(make_wants: Any) -> None:
    board = make_board()
    board.want(make_wants([3]), 0.0)
    for tier, outcome in ((1, ReadOutcome.MISSING), (2, ReadOutcome.SHORT)):
        begin(board, tier)
        finish(board, tier, outcome=outcome)
    ended = take_one(board)
    assert (ended.end, ended.slot, ended.tier) == (ReadEnd.FAILED, 3, None)
    assert [(f.tier, f.outcome) for f in ended.failures] == [(1, "missing"), (2, "short")]


def test_a_tier_that_turns_up_may_read_what_waits(make_wants: Any) -> None:
    board = make_board()
    board.want(make_wants([3], 0b10), 0.0)
    assert board.next_read(board.lanes(2)[0], 0.0) is None
    board.take_wakes()
    board.want(make_wants([3], 0b100), 0.0)
    assert board.take_wakes() == 0b110
    assert begin(board, 2).slot == 3
    assert [report.backlog_pages for report in board.report(0.0)] == [0, 0]


def test_lots_are_bounded_in_bytes_and_pages(make_wants: Any) -> None:
    widths = {1: 1, 2: 1}
    claimed = {}
    for name, options in {
        "pages": {"lot_pages": 3},
        "bytes": {"lot_pages": 99, "lot_bytes": 500},
        "share": {"lot_pages": 99},
    }.items():
        board = make_board(widths, **options)
        board.want(make_wants(range(40)), 0.0)
        begin(board, 1)
        claimed[name] = 1 + len(list(board.lanes(1)[0].claimed()))
    # Without another bound it is the fair share: half of what would fall to each lane.
    assert claimed == {"pages": 3, "bytes": 5, "share": 10}


def test_a_page_larger_than_a_lot_is_read_all_the_same(make_wants: Any) -> None:
    board = make_board(lot_bytes=10)
    board.want(make_wants([1]), 0.0)
    assert begin(board, 1).size_bytes == 100


def test_an_idle_tier_takes_what_another_has_claimed_and_not_begun(make_wants: Any) -> None:
    board = make_board(lot_pages=9)
    board.want(make_wants(range(8)), 0.0)
    begin(board, 1)
    lot = [page.key for page in board.lanes(1)[0].claimed()]
    taken = [_begin_and_finish(board, 2) for _ in range(7)]
    assert set(lot) < set(taken)
    assert board.next_read(board.lanes(2)[0], 0.0) is None
    finish(board, 1)
    assert board.next_read(board.lanes(1)[0], 0.0) is None
    assert len(board.take_outcomes()) == 8


def _begin_and_finish(board: Board, tier: int) -> bytes:
    key = begin(board, tier).key
    finish(board, tier)
    return key


def test_the_number_of_pages_wanted_is_bounded_outcomes_included(make_wants: Any) -> None:
    board = make_board(max_wanted=3)
    wants = make_wants(range(4))
    with pytest.raises(StoreError, match=r"4 pages beside 0 wanted, allowed: max_wanted=3"):
        board.want(wants, 0.0)
    board.want(wants[:3], 0.0)
    board.want(wants[:3], 0.0)
    board.cancel(wants[0].key)
    with pytest.raises(StoreError, match="recompute"):
        board.want(wants[3:], 0.0)
    board.take_outcomes()
    board.want(wants[3:], 0.0)


def test_closing_ends_everything_and_takes_nothing_more(make_wants: Any) -> None:
    board = make_board()
    board.want(make_wants(range(5)), 0.0)
    begin(board, 1)
    board.close()
    ends = Counter(outcome.end for outcome in board.take_outcomes())
    assert ends == {ReadEnd.CANCELLED: 5}
    assert board.next_read(board.lanes(2)[0], 0.0) is None
    with pytest.raises(StoreError, match="closed"):
        board.want(make_wants([9]), 0.0)
    finish(board, 1)
    assert board.take_outcomes() == []


def test_backlogs_follow_what_becomes_more_urgent(make_wants: Any) -> None:
    board = make_board()
    wants = make_wants(range(3))
    due_s = wants[0].due_s
    board.want(wants, 0.0)
    # Two tiers may read each of these: it is before others at half its size at either.
    assert [dict(report.backlog_by_due) for report in board.report(0.0)] == [{due_s: 150}] * 2
    assert board.hurry(wants[1].key, due_s - 1.0)
    assert dict(board.report(0.0)[0].backlog_by_due) == {due_s: 100, due_s - 1.0: 50}
    board.close()
    assert board.report(0.0)[0].backlog_by_due == ()


def test_a_tier_from_which_nothing_has_come_is_not_told_to_be_fast(make_wants: Any) -> None:
    board = make_board(widths={1: 2})
    board.want(make_wants(range(3), 0b10), 10.0)
    for lane in board.lanes(1):
        assert board.next_read(lane, 10.0) is not None
    speeds = [board.report(now_s)[0].bandwidth_bytes_per_s for now_s in (10.0, 12.0, 20.0)]
    assert speeds == [None, 100.0, 20.0]
    finish(board, 1, 20.0)
    # Ten seconds for a page, of which the meter has forgotten some.
    assert board.report(20.0)[0].bandwidth_bytes_per_s == pytest.approx(16.0, rel=0.1)


def test_reports_say_what_waits_what_is_read_and_how_reads_ended(make_wants: Any) -> None:
    board = make_board()
    board.want([*make_wants(range(3)), *make_wants([5], 0b100)], 10.0)
    assert [report.bandwidth_bytes_per_s for report in board.report(10.0)] == [None, None]
    assert [report.backlog_pages for report in board.report(10.0)] == [3, 4]
    begin(board, 1, 10.0)
    one, two = board.report(10.0)
    assert (one.backlog_bytes, one.reading_pages) == (200, 1)
    assert (two.backlog_bytes, two.reading_pages) == (300, 0)
    finish(board, 1, 12.0)
    one = board.report(500.0)[0]
    assert one.bandwidth_bytes_per_s == pytest.approx(50, rel=0.15)
    assert (one.latency_s, one.read_bytes, one.outcomes) == (0.5, 100, {"read": 1})
    assert board.is_wanted(1)
    for key in [want.key for want in make_wants([0, 1, 2])]:
        board.cancel(key)
    assert (board.is_wanted(1), board.is_wanted(2)) == (False, True)


@pytest.mark.parametrize(
    "change",
    [
        {"tiers": 0},
        {"tiers": 0b11},
        {"tiers": 1 << 8},
        {"size_bytes": 0},
        {"deadline_s": float("inf")},
        {"due_s": float("nan")},
    ],
)
def test_no_such_want(change: dict[str, Any], make_wants: Any) -> None:
    with pytest.raises(StoreError, match="allowed"):
        make_wants([1], **change)


def test_unknown_tiers_and_wrong_keys_are_refused(make_wants: Any) -> None:
    board = make_board({1: 1})
    with pytest.raises(StoreError, match=r"tiers \[1, 2\], known: \[1\]"):
        board.want(make_wants([1]), 0.0)
    with pytest.raises(ValueError, match="a key of 3 bytes"):
        PageWant(b"abc", 0, 1, 2, 0.0, 0, 1.0)


@pytest.mark.parametrize(
    ("widths", "spares", "what"),
    [
        ({1: 3, 2: 2}, SPARES, "4 spare slots, allowed: >= 5"),
        ({1: 1, 2: 1}, (7, 7), "1 spare slots, allowed: >= 2"),
        ({0: 1}, SPARES, "tier 0"),
        ({1: 0}, SPARES, "width 0"),
    ],
)
def test_no_such_board(widths: dict[int, int], spares: Sequence[int], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Board(widths, spares, COMPLETION, ReaderOptions())


class Onlooker(Completion):
    """A policy that notes what it is told of tier 1."""

    def __init__(self) -> None:
        super().__init__(CompletionOptions())
        self.seen: list[TierLoad] = []

    def may_claim(self, tier: int, loads: Sequence[TierLoad]) -> bool:
        self.seen.append(loads[0])
        return super().may_claim(tier, loads)


def test_a_policy_is_told_what_waits_what_is_read_and_what_only_one_tier_holds(
    make_wants: Any,
) -> None:
    policy = Onlooker()
    board = make_board({1: 2, 2: 1}, policy, stall_after_s=0.5)
    board.want([*make_wants([1, 2]), *make_wants([3, 4, 5], 0b10)], 0.0)
    begin(board, 2)
    first = policy.seen[-1]
    assert (first.tier, first.width, first.reading, first.overdue) == (1, 2, 0, 0)
    assert (first.waiting_bytes, first.only_here_bytes) == (500, 300)
    assert (first.bandwidth_bytes_per_s, first.latency_s) == (None, None)
    begin(board, 1)
    finish(board, 1, 0.25)
    begin(board, 1, 0.25)
    # Both reads under way are overdue: the page of tier 2 waits for tier 1, too.
    board.expire(1.25)
    assert board.next_read(board.lanes(1)[1], 1.25) is not None
    last = policy.seen[-1]
    assert (last.reading, last.overdue) == (0, 1)
    assert (last.waiting_bytes, last.only_here_bytes) == (300, 300)
    assert last.latency_s == 0.25


class Outlaw(Completion):
    """A policy that breaks its law in every way."""

    def __init__(self, tiers: int) -> None:
        super().__init__(CompletionOptions())
        self._tiers = tiers

    def choose_tiers(self, page: OpenPage, loads: Sequence[TierLoad]) -> TierChoice:
        if not self._tiers:
            raise RuntimeError("no idea")
        return TierChoice(self._tiers, "because")

    def may_claim(self, tier: int, loads: Sequence[TierLoad]) -> bool:
        raise RuntimeError("no idea")


@pytest.mark.parametrize("tiers", [0, 0b1000, -1])
def test_a_policy_that_breaks_its_law_is_counted_and_not_followed(
    tiers: int, make_wants: Any
) -> None:
    board = make_board(policy=Outlaw(tiers))
    board.want(make_wants([1]), 0.0)
    assert begin(board, 2).slot == 1
    assert board.policy_faults == 2
