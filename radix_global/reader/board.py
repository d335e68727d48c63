"""All pages wanted, and which thread of which tier reads what next: decisions only, no thread.

Slots: every read under way has one of its own, so a late read touches nobody's. A page brings one;
the board's spares, as many as lanes, stand in where a read under way holds it and its page needs
one: to be read elsewhere, or to give one back with its outcome. The read's own becomes the spare
when it returns. A page has borrowed at most one spare for each of its reads under way, hence there
are always enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bana.radix_global.pages import MAX_TIERS
from bana.radix_global.reader.advice import GuardedPolicy
from bana.radix_global.reader.entries import Lane, Reading, TierState, WantedPage, tiers_in
from bana.radix_global.reader.lazy_heap import Key, LazyHeap
from bana.radix_global.reader.options import ReaderOptions
from bana.radix_global.reader.policies import OpenPage, ReadPolicy, TierLoad
from bana.radix_global.reader.report import TierReport
from bana.radix_global.reader.wanting import PageRead, PageWant, ReadEnd, TierFailure, Wanted
from bana.radix_global.stores.store import ReadOutcome
from bana.slo.errors import ConfigError, StoreError


class Board:
    """The pages wanted, until each has its one outcome.

    `widths` says how many reads of each tier may be under way. Times come in. O(log n) a call for
    n pages wanted, times the tiers that hold a page. Not thread-safe.
    """

    def __init__(
        self,
        widths: Mapping[int, int],
        spare_slots: Sequence[int],
        policy: ReadPolicy,
        options: ReaderOptions,
    ) -> None:
        _require_spares(widths, spare_slots)
        self._options = options
        self._advice = GuardedPolicy(policy)
        self._tiers = {t: TierState(t, widths[t], options.memory_s) for t in sorted(widths)}
        self._lanes = [lane for tier in self._tiers.values() for lane in tier.lanes]
        self._known = sum(tier.bit for tier in self._tiers.values())
        self._pages: dict[bytes, WantedPage] = {}
        self._deadlines: LazyHeap[WantedPage] = LazyHeap(_is_pending)
        self._spares = list(spare_slots)
        self._outcomes: list[PageRead] = []
        self._loads = self._reckon_loads(0.0)
        self._number = 0
        self._wakes = 0
        self._denied = 0
        self._is_closed = False
        # When to call `expire` at the latest.
        self.look_at_s = math.inf

    @property
    def policy_faults(self) -> int:
        """How often the policy broke its law, and was not followed."""
        return self._advice.faults

    def lanes(self, tier: int) -> Sequence[Lane]:
        """The lanes of a tier, one for each thread that reads from it."""
        return self._tiers[tier].lanes

    def want(self, wants: Sequence[PageWant], now_s: float) -> tuple[Wanted, ...]:
        """Have pages read; StoreError, and none taken, when closed, full, or a tier is unknown."""
        self._require_readable(wants)
        # Told once for all: reckoning it up for each page would take as long as the rest.
        self._loads = self._reckon_loads(now_s)
        return tuple(self._want_one(want) for want in wants)

    def hurry(self, key: bytes, due_s: float) -> bool:
        """Have the page read as if due at `due_s`, if that is earlier; False if not wanted."""
        page = self._pages.get(key)
        if page is not None:
            self._move_up(page, due_s, page.position)
        return page is not None

    def cancel(self, key: bytes) -> bool:
        """End the wait for a page, with its outcome; False if it is not wanted."""
        page = self._pages.get(key)
        if page is not None:
            self._end(page, ReadEnd.CANCELLED)
        return page is not None

    def next_read(self, lane: Lane, now_s: float) -> Reading | None:
        """What the lane, which has nothing under way, reads now; None: nothing until a wake."""
        assert lane.reading is None
        while not self._is_closed:
            while lane.lot:
                page = lane.lot.popleft()
                if page.lane is lane:
                    return self._begin(lane, page, now_s)
            if not self._claim(lane, now_s):
                break
        return None

    def finish(self, lane: Lane, outcome: ReadOutcome, now_s: float) -> None:
        """The lane's read has come back."""
        reading, lane.reading = lane.reading, None
        assert reading is not None
        page, tier = reading.page, self._tiers[lane.tier]
        moved_bytes = page.size_bytes if outcome is ReadOutcome.READ else 0
        tier.meter.end(outcome, moved_bytes, now_s)
        if outcome is ReadOutcome.READ or reading.is_overdue:
            tier.meter.note_latency(now_s - reading.begun_s, self._overdue_after_s(tier))
        tier.overdue -= reading.is_overdue
        self._wake_denied()
        page.readings.remove(reading)
        if page.is_done:
            self._spares.append(reading.slot)
        elif outcome is ReadOutcome.READ:
            self._take_back(page)
            page.slot = reading.slot
            self._end(page, ReadEnd.READ, lane.tier)
        else:
            page.failures.append(TierFailure(lane.tier, outcome))
            self._loads = self._reckon_loads(now_s)
            self._take_back(page)
            page.slot = reading.slot
            self._go_on(page)

    def expire(self, now_s: float) -> None:
        """See which reads are overdue and which deadlines passed; again at `look_at_s`."""
        self.look_at_s = math.inf
        for lane in self._lanes:
            reading = lane.reading
            if reading is not None and not reading.is_overdue:
                self._judge_reading(reading, now_s)
        while (found := self._deadlines.peek()) is not None:
            page = found[1]
            if page.deadline_s > now_s:
                self.look_at_s = min(self.look_at_s, page.deadline_s)
                break
            self._end(page, ReadEnd.LATE)

    def take_outcomes(self) -> list[PageRead]:
        """What came about since the last call."""
        taken, self._outcomes = self._outcomes, []
        return taken

    def has_outcomes(self) -> bool:
        """Whether there is something to take."""
        return bool(self._outcomes)

    def take_wakes(self) -> int:
        """The mask of the tiers whose idle lanes may find something to do since the last call."""
        wakes, self._wakes = self._wakes, 0
        return wakes

    def is_wanted(self, tier: int) -> bool:
        """Whether the tier reads, or may."""
        state = self._tiers[tier]
        return state.waiting_pages > 0 or state.meter.under_way > state.overdue

    def report(self, now_s: float) -> tuple[TierReport, ...]:
        """How each tier fares."""
        return tuple(tier.report(now_s) for tier in self._tiers.values())

    def close(self) -> None:
        """Cancel everything and take nothing more; reads under way may still come back."""
        self._is_closed = True
        for page in list(self._pages.values()):
            self._end(page, ReadEnd.CANCELLED)

    def _require_readable(self, wants: Sequence[PageWant]) -> None:
        if self._is_closed:
            raise StoreError("the reader is closed; recompute the page")
        for want in wants:
            if want.tiers & ~self._known:
                raise StoreError(
                    f"a page of tiers {list(tiers_in(want.tiers))}, known: {list(self._tiers)}; "
                    "recompute it"
                )
        wanted = len(self._pages) + len(self._outcomes)
        added = sum(want.key not in self._pages for want in wants)
        if wanted + added > self._options.max_wanted:
            raise StoreError(
                f"{added} pages beside {wanted} wanted, allowed: max_wanted="
                f"{self._options.max_wanted}; recompute these"
            )

    def _want_one(self, want: PageWant) -> Wanted:
        page = self._pages.get(want.key)
        if page is not None:
            self._raise_urgency(page, want)
            return Wanted.KNOWN
        page = WantedPage(
            key=want.key,
            size_bytes=want.size_bytes,
            number=self._number,
            slot=want.slot,
            due_s=want.due_s,
            position=want.position,
            deadline_s=want.deadline_s,
            holders=want.tiers,
        )
        self._number += 1
        self._pages[want.key] = page
        self._set_deadline(page, want.deadline_s)
        self._queue(page)
        return Wanted.TAKEN

    def _set_deadline(self, page: WantedPage, deadline_s: float) -> None:
        page.deadline_s = deadline_s
        self._deadlines.push(page.expiry, page)
        self.look_at_s = min(self.look_at_s, deadline_s)

    def _raise_urgency(self, page: WantedPage, want: PageWant) -> None:
        if want.deadline_s > page.deadline_s:
            self._set_deadline(page, want.deadline_s)
        self._move_up(page, want.due_s, min(want.position, page.position))
        if want.tiers & ~page.holders:
            page.holders |= want.tiers
            if page.chosen or all(reading.is_overdue for reading in page.readings):
                self._withdraw(page)
                self._go_on(page)

    def _move_up(self, page: WantedPage, due_s: float, position: int) -> None:
        before, before_s = page.rank, page.due_s
        page.due_s = min(page.due_s, due_s)
        page.position = position
        if page.due_s != before_s:
            for tier in tiers_in(page.chosen):
                self._tiers[tier].change_due(page, before_s)
        if page.chosen and page.lane is None and page.rank != before:
            self._line_up(page)

    def _queue(self, page: WantedPage) -> None:
        """Let the tiers that the policy chooses claim the page."""
        view = OpenPage(page.key, page.number, page.size_bytes, page.untried, page.attempts)
        page.chosen = self._advice.choose_tiers(view, self._loads)
        for tier in tiers_in(page.chosen):
            self._tiers[tier].add_waiting(page)
        self._line_up(page)

    def _line_up(self, page: WantedPage) -> None:
        page.lane = None
        for tier in tiers_in(page.chosen):
            self._tiers[tier].queue.push(page.rank, page)
        self._wakes |= page.chosen

    def _withdraw(self, page: WantedPage) -> None:
        """Nobody may claim the page."""
        for tier in tiers_in(page.chosen):
            self._tiers[tier].remove_waiting(page)
        page.chosen, page.lane = 0, None

    def _claim(self, lane: Lane, now_s: float) -> bool:
        """Fill the lane's lot: from its tier's queue, or with a page that another lane has yet to
        begin; False if there is none, or it may not.
        """
        self._loads = self._reckon_loads(now_s)
        if not self._advice.may_claim(lane.tier, self._loads):
            self._denied |= 1 << lane.tier
            return False
        tier = self._tiers[lane.tier]
        fair_bytes = tier.waiting_bytes // (2 * len(self._lanes))
        left_bytes = min(self._options.lot_bytes, fair_bytes)
        while (found := tier.queue.peek()) is not None and len(lane.lot) < self._options.lot_pages:
            page = found[1]
            if lane.lot and page.size_bytes > left_bytes:
                break
            left_bytes -= page.size_bytes
            page.lane = lane
            lane.lot.append(page)
        return bool(lane.lot) or self._steal(lane)

    def _steal(self, lane: Lane) -> bool:
        bit = 1 << lane.tier
        heads = (
            next((page for page in other.claimed() if page.chosen & bit), None)
            for other in self._lanes
        )
        page = min((head for head in heads if head is not None), key=_rank, default=None)
        if page is None:
            return False
        page.lane = lane
        lane.lot.append(page)
        return True

    def _begin(self, lane: Lane, page: WantedPage, now_s: float) -> Reading:
        self._withdraw(page)
        assert page.slot is not None
        reading = Reading(page, lane, page.slot, now_s)
        page.slot = None
        page.tried |= 1 << lane.tier
        page.attempts += 1
        page.readings.append(reading)
        lane.reading = reading
        tier = self._tiers[lane.tier]
        tier.meter.begin(now_s)
        self.look_at_s = min(self.look_at_s, now_s + self._overdue_after_s(tier))
        return reading

    def _judge_reading(self, reading: Reading, now_s: float) -> None:
        overdue_s = reading.begun_s + self._overdue_after_s(self._tiers[reading.lane.tier])
        if overdue_s <= now_s:
            self._mark_overdue(reading, now_s)
        else:
            self.look_at_s = min(self.look_at_s, overdue_s)

    def _mark_overdue(self, reading: Reading, now_s: float) -> None:
        """Wait for the read no longer: its page, and what its lane has claimed, go elsewhere."""
        lane, page = reading.lane, reading.page
        reading.is_overdue = True
        self._tiers[lane.tier].overdue += 1
        for claimed in list(lane.claimed()):
            self._line_up(claimed)
        lane.lot.clear()
        self._wake_denied()
        if not page.is_done and not page.chosen:
            self._loads = self._reckon_loads(now_s)
            self._go_on(page)

    def _go_on(self, page: WantedPage) -> None:
        """Try the next tiers; with none left and no read under way the page has failed."""
        if page.chosen:
            return
        if page.untried:
            if page.slot is None:
                page.slot = self._spares.pop()
            self._queue(page)
        elif not page.readings:
            self._end(page, ReadEnd.FAILED)

    def _take_back(self, page: WantedPage) -> None:
        """Put the page's slot back to the spares, if it has one."""
        if page.slot is not None:
            self._spares.append(page.slot)
            page.slot = None

    def _end(self, page: WantedPage, end: ReadEnd, tier: int | None = None) -> None:
        self._withdraw(page)
        page.is_done = True
        del self._pages[page.key]
        slot = self._spares.pop() if page.slot is None else page.slot
        page.slot = None
        self._outcomes.append(PageRead(page.key, slot, end, tier, tuple(page.failures)))

    def _reckon_loads(self, now_s: float) -> tuple[TierLoad, ...]:
        return tuple(tier.load(now_s) for tier in self._tiers.values())

    def _wake_denied(self) -> None:
        self._wakes |= self._denied
        self._denied = 0

    def _overdue_after_s(self, tier: TierState) -> float:
        latency_s = tier.meter.latency_s or 0.0
        return max(self._options.stall_after_s, self._options.stall_factor * latency_s)


def _is_pending(key: Key, page: WantedPage) -> bool:
    return not page.is_done and page.expiry == key


def _rank(page: WantedPage) -> Key:
    return page.rank


def _require_spares(widths: Mapping[int, int], spare_slots: Sequence[int]) -> None:
    for tier, width in widths.items():
        if not 1 <= tier <= MAX_TIERS or width < 1:
            raise ConfigError(
                f"tier {tier} of width {width}, allowed: tiers 1..{MAX_TIERS} and a width >= 1; "
                "it is how many threads read from the tier"
            )
    if len(set(spare_slots)) < sum(widths.values()):
        raise ConfigError(
            f"{len(set(spare_slots))} spare slots, allowed: >= {sum(widths.values())}, one for "
            "each reading thread; make the arena larger, or the tiers' width smaller"
        )
