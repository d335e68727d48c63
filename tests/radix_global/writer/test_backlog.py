"""What waits for a tier: order, deferral, bounds, what is given up, one outcome a tier."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bana.radix_global.stores.store import PageOrigin, Write, WriteOutcome
from bana.radix_global.writer.backlog import WriteBacklog
from bana.radix_global.writer.jobs import PageWritten, WriteEnd, WriteJob
from bana.radix_global.writer.options import WriterOptions
from bana.slo.errors import ConfigError, StoreError

ORIGIN = PageOrigin(b"", 0)
BOTH = 0b110
WRITTEN = Write(WriteOutcome.WRITTEN)


def job(number: int, tiers: int = BOTH, size_bytes: int = 100) -> WriteJob:
    return WriteJob(number.to_bytes(16, "big"), ORIGIN, number, size_bytes, tiers)


class Stand:
    """A backlog of two tiers, and which of them are read from."""

    def __init__(self, **options: float) -> None:
        self.read_from: set[int] = set()
        is_read_from = self.read_from.__contains__
        self.backlog = WriteBacklog((1, 2), is_read_from, WriterOptions(**options))

    def begin(self, tier: int, now_s: float = 0.0) -> int | None:
        """Which slot the tier copies now."""
        begun = self.backlog.next_write(tier, now_s)
        return None if begun is None else begun.slot

    def ends(self) -> list[tuple[int, int, WriteEnd, bool]]:
        """Slot, tier, end, whether it is the last, of each outcome."""
        taken = self.backlog.take_outcomes()
        return [(end.slot, end.tier, end.end, end.is_last) for end in taken]


def test_each_tier_writes_in_the_order_of_the_offers_and_the_last_is_told() -> None:
    stand = Stand()
    for number in (5, 6):
        stand.backlog.offer(job(number), 0.0)
    assert stand.begin(1) == 5
    stand.backlog.finish(1, Write(WriteOutcome.WRITTEN, (b"k" * 16,)), 1.0)
    (first,) = stand.backlog.take_outcomes()
    assert first == PageWritten(job(5).key, 5, 1, WriteEnd.WRITTEN, (b"k" * 16,), False)
    assert stand.begin(1) == 6
    assert stand.begin(2) == 5
    stand.backlog.finish(2, Write(WriteOutcome.PRESENT), 1.0)
    assert stand.ends() == [(5, 2, WriteEnd.PRESENT, True)]
    assert stand.begin(2) == 6


def test_a_tier_that_is_read_from_waits_and_others_do_not() -> None:
    stand = Stand(defer_s=1.0)
    stand.read_from.add(1)
    stand.backlog.offer(job(5), 0.0)
    assert stand.begin(1, 0.9) is None
    assert stand.begin(2, 0.9) == 5
    stand.read_from.clear()
    assert stand.begin(1, 0.9) == 5


def test_the_first_copy_is_written_at_last_and_a_further_one_given_up() -> None:
    stand = Stand(defer_s=1.0)
    stand.read_from.update((1, 2))
    stand.backlog.offer(job(5), 0.0)
    assert stand.begin(2, 0.5) is None
    assert stand.begin(2, 1.0) == 5
    assert stand.begin(1, 1.0) is None
    assert stand.ends() == [(5, 1, WriteEnd.CROWDED_OUT, False)]
    stand.backlog.finish(2, WRITTEN, 1.1)
    assert stand.ends() == [(5, 2, WriteEnd.WRITTEN, True)]


def test_a_copy_that_failed_counts_for_none() -> None:
    stand = Stand(defer_s=1.0)
    stand.read_from.update((1, 2))
    stand.backlog.offer(job(5), 0.0)
    assert stand.begin(2, 1.0) == 5
    stand.backlog.finish(2, Write(WriteOutcome.FULL), 1.1)
    assert stand.begin(1, 1.2) == 5


@pytest.mark.parametrize("options", [{"max_pages": 2}, {"max_bytes": 250}])
def test_what_is_beyond_the_bounds_is_crowded_out_at_once(options: dict[str, float]) -> None:
    stand = Stand(**options)
    for number in range(3):
        stand.backlog.offer(job(number, 0b10), 0.0)
    assert stand.ends() == [(2, 1, WriteEnd.CROWDED_OUT, True)]
    stand.backlog.offer(job(4, BOTH), 0.0)
    assert stand.ends() == [(4, 1, WriteEnd.CROWDED_OUT, False)]
    assert stand.begin(2) == 4
    report = stand.backlog.report(0.0)
    assert [tier.backlog_pages for tier in report] == [2, 0]
    assert report[0].outcomes[WriteEnd.CROWDED_OUT] == 2


def test_behind_a_stalled_write_the_others_are_given_up_in_time() -> None:
    stand = Stand(give_up_s=10.0)
    for number in range(3):
        stand.backlog.offer(job(number, 0b10), float(number))
    assert stand.begin(1, 2.0) == 0
    assert stand.backlog.look_at_s == 11.0
    stand.backlog.expire(11.5)
    assert stand.ends() == [(1, 1, WriteEnd.CROWDED_OUT, True)]
    assert stand.backlog.look_at_s == 12.0
    stand.backlog.finish(1, WRITTEN, 500.0)
    assert stand.ends() == [(0, 1, WriteEnd.WRITTEN, True)]


def test_closing_gives_up_what_waits_and_takes_nothing_more() -> None:
    stand = Stand()
    stand.backlog.offer(job(1, 0b10), 0.0)
    stand.backlog.offer(job(2, 0b10), 0.0)
    assert stand.begin(1) == 1
    stand.backlog.close()
    assert stand.ends() == [(2, 1, WriteEnd.CROWDED_OUT, True)]
    with pytest.raises(StoreError, match="closed"):
        stand.backlog.offer(job(3), 0.0)
    stand.backlog.finish(1, WRITTEN, 1.0)
    assert stand.ends() == [(1, 1, WriteEnd.WRITTEN, True)]


def test_reports_say_what_waits_and_what_a_tier_gives() -> None:
    stand = Stand()
    for number in range(3):
        stand.backlog.offer(job(number, 0b10), 0.0)
    stand.begin(1, 1.0)
    one, two = stand.backlog.report(1.0)
    assert (one.backlog_pages, one.backlog_bytes, one.writing_pages) == (2, 200, 1)
    assert (two.backlog_pages, two.bandwidth_bytes_per_s) == (0, None)
    stand.backlog.finish(1, WRITTEN, 3.0)
    one = stand.backlog.report(3.0)[0]
    assert one.bandwidth_bytes_per_s == pytest.approx(50, rel=0.15)
    assert one.written_bytes == 100
    assert one.outcomes == {"written": 1, "crowded_out": 0}


@pytest.mark.parametrize("tiers", [0, 1, 1 << 8])
def test_no_such_job(tiers: int) -> None:
    with pytest.raises(StoreError, match="allowed"):
        job(1, tiers)


def test_unknown_tiers_are_refused() -> None:
    with pytest.raises(StoreError, match="allowed: 0b110"):
        Stand().backlog.offer(job(1, 0b1000), 0.0)
    with pytest.raises(ConfigError, match="one or more, each once"):
        WriteBacklog((), lambda _: False, WriterOptions())


@pytest.mark.parametrize(
    "options",
    [{"max_pages": 0}, {"max_bytes": 0}, {"defer_s": 11}, {"defer_s": -1}, {"recheck_s": 0}],
)
def test_no_such_options(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="allowed"):
        Stand(**options)


class BacklogMachine(RuleBasedStateMachine):
    """Offers, writes, reads that come and go, time: each tier of each job has one outcome."""

    def __init__(self) -> None:
        super().__init__()
        self.stand = Stand(max_pages=4, max_bytes=350, defer_s=1.0, give_up_s=3.0)
        self.now_s = 0.0
        self.offered = 0
        self.expected: Counter[tuple[int, int]] = Counter()
        self.left: Counter[int] = Counter()
        self.writing: dict[int, int] = {}

    @rule(tiers=st.sampled_from([0b10, 0b100, 0b110]))
    def offer(self, tiers: int) -> None:
        number, self.offered = self.offered, self.offered + 1
        for tier in (1, 2):
            self.expected[number, tier] += tiers >> tier & 1
        self.left[number] = tiers.bit_count()
        self.stand.backlog.offer(job(number, tiers), self.now_s)
        self.take()

    @rule(tier=st.sampled_from([1, 2]))
    def begin(self, tier: int) -> None:
        if tier in self.writing:
            return
        slot = self.stand.begin(tier, self.now_s)
        self.take()
        if slot is not None:
            assert self.expected[slot, tier] == 1
            self.writing[tier] = slot

    @rule(tier=st.sampled_from([1, 2]), outcome=st.sampled_from(list(WriteOutcome)))
    def finish(self, tier: int, outcome: WriteOutcome) -> None:
        if tier in self.writing:
            slot = self.writing.pop(tier)
            self.stand.backlog.finish(tier, Write(outcome), self.now_s)
            assert [end[:2] for end in self.take()] == [(slot, tier)]

    @rule(tier=st.sampled_from([1, 2]))
    def turn_reads(self, tier: int) -> None:
        self.stand.read_from ^= {tier}

    @rule(step_s=st.sampled_from([0.2, 1.0, 3.0]))
    def pass_time(self, step_s: float) -> None:
        self.now_s += step_s
        self.stand.backlog.expire(self.now_s)
        assert self.stand.backlog.look_at_s > self.now_s
        self.take()

    def take(self) -> list[tuple[int, int, WriteEnd, bool]]:
        ends = self.stand.ends()
        for slot, tier, _, is_last in ends:
            self.expected[slot, tier] -= 1
            self.left[slot] -= 1
            assert self.expected[slot, tier] == 0
            assert is_last == (self.left[slot] == 0)
        return ends

    @invariant()
    def bounds_hold(self) -> None:
        for report in self.stand.backlog.report(self.now_s):
            assert report.backlog_pages <= 4
            assert report.backlog_bytes == 100 * report.backlog_pages <= 350
            assert report.writing_pages == (report.tier in self.writing)

    def teardown(self) -> None:
        self.stand.backlog.close()
        self.take()
        for tier in list(self.writing):
            self.finish(tier, WriteOutcome.WRITTEN)
        assert self.expected.total() == 0


TestBacklogMachine = BacklogMachine.TestCase
TestBacklogMachine.settings = settings(deadline=None, max_examples=60)
