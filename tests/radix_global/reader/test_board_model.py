"""The board under anything that may happen: no page lost, none read twice, no slot shared."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from bana.radix_global.reader.board import Board
from bana.radix_global.reader.entries import Reading
from bana.radix_global.reader.options import ReaderOptions
from bana.radix_global.reader.policies import DEFAULT_READER, READERS
from bana.radix_global.reader.wanting import PageRead, PageWant, ReadEnd, Wanted
from bana.radix_global.stores.store import ReadOutcome

KEYS = st.integers(0, 11)
TIMES = st.sampled_from([0.0, 1.0, 2.0, 5.0])
TIERS = (1, 2, 3)
MASKS = st.integers(1, 7).map(lambda mask: mask << 1)
OUTCOMES = st.sampled_from([ReadOutcome.READ] * 3 + list(ReadOutcome))
STALL_S = 1.0
MAX_WANTED = 9


class BoardMachine(RuleBasedStateMachine):
    """Wants, urgency, cancellations, reads, stalls and deadlines in any order."""

    policy = DEFAULT_READER
    policy_options: Mapping[str, object] = {"leave_factor": 0}

    @initialize(width=st.integers(1, 2), lot_pages=st.integers(1, 4))
    def build(self, width: int, lot_pages: int) -> None:
        widths = dict.fromkeys(TIERS, width)
        # The slots that are the reader's: its spares, and those of pages wanted.
        self.theirs = set(range(1_000, 1_000 + 3 * width))
        options = ReaderOptions(
            max_wanted=MAX_WANTED, lot_pages=lot_pages, stall_after_s=STALL_S, stall_factor=1.0
        )
        policy = READERS.create(self.policy, self.policy_options)
        self.board = Board(widths, sorted(self.theirs), policy, options)
        self.lanes = [lane for tier in TIERS for lane in self.board.lanes(tier)]
        self.now_s = 0.0
        self.next_slot = 0
        self.pending: dict[bytes, PageWant] = {}
        self.due_s: dict[bytes, float] = {}
        self.deadline_s: dict[bytes, float] = {}
        self.holders: dict[bytes, int] = {}
        self.tried: dict[bytes, int] = {}

    @rule(number=KEYS, tiers=MASKS, due_s=TIMES, wait_s=TIMES)
    def want(self, number: int, tiers: int, due_s: float, wait_s: float) -> None:
        key = number.to_bytes(16, "big")
        if key not in self.pending and len(self.pending) == MAX_WANTED:
            return
        deadline_s = self.now_s + wait_s
        want = PageWant(key, self.next_slot, 10, tiers, due_s, number, deadline_s)
        (taken,) = self.board.want([want], self.now_s)
        assert (taken is Wanted.TAKEN) == (key not in self.pending)
        if taken is Wanted.TAKEN:
            self.theirs.add(self.next_slot)
            self.next_slot += 1
            self.pending[key], self.tried[key], self.holders[key] = want, 0, tiers
            self.due_s[key], self.deadline_s[key] = due_s, deadline_s
        else:
            self.holders[key] |= tiers
            self.due_s[key] = min(self.due_s[key], due_s)
            self.deadline_s[key] = max(self.deadline_s[key], deadline_s)

    @rule(number=KEYS, due_s=TIMES)
    def hurry(self, number: int, due_s: float) -> None:
        key = number.to_bytes(16, "big")
        assert self.board.hurry(key, due_s) == (key in self.pending)
        if key in self.pending:
            self.due_s[key] = min(self.due_s[key], due_s)

    @rule(number=KEYS)
    def cancel(self, number: int) -> None:
        key = number.to_bytes(16, "big")
        was_wanted = key in self.pending
        assert self.board.cancel(key) == was_wanted
        self.take()
        assert key not in self.pending

    @rule(index=st.integers(0, 5))
    def begin(self, index: int) -> None:
        lane = self.lanes[index % len(self.lanes)]
        if lane.reading is not None:
            return
        claimed = {page.key for other in self.lanes for page in other.claimed()}
        has_lot = any(True for _ in lane.claimed())
        free = self._waiting(lane.tier) - claimed
        reading = self.board.next_read(lane, self.now_s)
        if reading is None:
            assert not self.is_eager or not free
            return
        key = reading.key
        assert key in self.pending
        assert not self.tried[key] >> lane.tier & 1
        self.tried[key] |= 1 << lane.tier
        others = [other for other in self._under_way() if other is not reading]
        assert all(other.is_overdue for other in others if other.page is reading.page)
        if self.is_eager and free and not has_lot:
            assert self._urgency(key) == min(map(self._urgency, free))

    def _waiting(self, tier: int) -> set[bytes]:
        """The pages that the tier could begin: untried there, and no read of them is in time."""
        in_time = {reading.key for reading in self._in_time()}
        return {
            key
            for key in self.pending
            if key not in in_time and self.holders[key] & ~self.tried[key] & 1 << tier
        }

    def _urgency(self, key: bytes) -> tuple[float, bytes]:
        # A page's number is its position.
        return self.due_s[key], key

    def _in_time(self) -> list[Reading]:
        """The reads under way of pages that are still wanted, and not overdue."""
        return [r for r in self._under_way() if not r.is_overdue and not r.page.is_done]

    @precondition(lambda self: any(lane.reading for lane in self.lanes))
    @rule(data=st.data(), outcome=OUTCOMES)
    def finish(self, data: st.DataObject, outcome: ReadOutcome) -> None:
        lane = data.draw(st.sampled_from([lane for lane in self.lanes if lane.reading]))
        assert lane.reading is not None
        key, slot, page = lane.reading.key, lane.reading.slot, lane.reading.page
        was_done = page.is_done
        self.board.finish(lane, outcome, self.now_s)
        ends = self.take()
        if outcome is ReadOutcome.READ and not was_done:
            assert [(e.key, e.slot, e.tier) for e in ends] == [(key, slot, lane.tier)]

    @rule(step_s=st.sampled_from([0.1, 0.6, 1.0, 3.0]))
    def pass_time(self, step_s: float) -> None:
        self.now_s += step_s
        assert self.board.look_at_s <= min(self.deadline_s.values(), default=float("inf"))
        self.board.expire(self.now_s)
        self.take()
        assert all(self.deadline_s[key] > self.now_s for key in self.pending)
        assert self.board.look_at_s > self.now_s

    def take(self) -> list[PageRead]:
        """Take outcomes: each for a page that is pending, with a slot that no read is filling."""
        ends = self.board.take_outcomes()
        filling = {reading.slot for reading in self._under_way()}
        for end in ends:
            del self.pending[end.key], self.due_s[end.key], self.deadline_s[end.key]
            assert (end.tier is not None) == (end.end is ReadEnd.READ)
            assert end.slot not in filling
            self.theirs.remove(end.slot)
        return ends

    @invariant()
    def no_two_reads_fill_one_slot_and_all_are_the_readers(self) -> None:
        filling = [reading.slot for reading in self._under_way()]
        assert len(set(filling)) == len(filling)
        assert set(filling) <= self.theirs

    @invariant()
    def backlogs_are_what_waits(self) -> None:
        if not self.is_eager or not self._under_way():
            return
        reports = self.board.report(self.now_s)
        waiting = [len(self._waiting(tier)) for tier in TIERS]
        assert [report.backlog_pages for report in reports] == waiting
        assert [report.backlog_bytes for report in reports] == [10 * pages for pages in waiting]
        for tier, report in zip(TIERS, reports, strict=True):
            shares = [
                10 // sum(page in self._waiting(other) for other in TIERS)
                for page in self._waiting(tier)
            ]
            assert sum(size for _, size in report.backlog_by_due) == sum(shares)
        assert sum(report.reading_pages for report in reports) == len(self._under_way())
        overdue = sum(reading.is_overdue for reading in self._under_way())
        assert sum(report.overdue_pages for report in reports) == overdue

    @property
    def is_eager(self) -> bool:
        """Whether every tier may read whatever it holds."""
        return self.policy_options is BoardMachine.policy_options

    def _under_way(self) -> list[Reading]:
        lanes = getattr(self, "lanes", ())
        return [lane.reading for lane in lanes if lane.reading is not None]

    def teardown(self) -> None:
        if not hasattr(self, "board"):
            return
        self.board.close()
        self.take()
        assert self.pending == {}
        for lane in self.lanes:
            if lane.reading is not None:
                self.board.finish(lane, ReadOutcome.READ, self.now_s)
        assert self.board.take_outcomes() == []
        assert len(self.theirs) == len(self.lanes)


class LeavingMachine(BoardMachine):
    policy_options: Mapping[str, object] = {}


class SequentialMachine(BoardMachine):
    policy = "sequential"
    policy_options: Mapping[str, object] = {}


class FixedSplitMachine(BoardMachine):
    policy = "fixed_split"
    policy_options: Mapping[str, object] = {}


TestBoard = BoardMachine.TestCase
TestBoard.settings = settings(deadline=None, max_examples=60, stateful_step_count=50)
TestLeaving = LeavingMachine.TestCase
TestLeaving.settings = settings(deadline=None, max_examples=25, stateful_step_count=40)
TestSequential = SequentialMachine.TestCase
TestSequential.settings = settings(deadline=None, max_examples=25, stateful_step_count=40)
TestFixedSplit = FixedSplitMachine.TestCase
TestFixedSplit.settings = settings(deadline=None, max_examples=25, stateful_step_count=40)
