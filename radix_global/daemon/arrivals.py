"""What becomes of pages that the reader is done with.

    READ ──▶ into the index and to all who wait; the slot is freed where the page was there already
    LATE, CANCELLED ──somebody waits longer than the reader did──▶ read again
    otherwise ──▶ they who wait end before the page

Pages that follow each other enter the index in one call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from bana.radix_global.daemon.readings import Reading, ReadingBook, ReadOrder
from bana.radix_global.daemon.slots import Holding, SlotBook
from bana.radix_global.daemon.tier_books import TierBooks, tier_bits
from bana.radix_global.daemon.wants import Came, WantBook
from bana.radix_global.daemon.writes import WriteBook
from bana.radix_global.index import PrefixIndex
from bana.radix_global.messages import WantOutcome
from bana.radix_global.pages import ARENA, Chain
from bana.radix_global.reader.wanting import PageRead, ReadEnd


class ArenaBooks(NamedTuple):
    """What there is to know of one arena."""

    slots: SlotBook
    readings: ReadingBook
    wants: WantBook
    writes: WriteBook


class Arrivals:
    """Brings what was read to those who want it."""

    def __init__(
        self,
        index: PrefixIndex,
        tiers: TierBooks,
        books: ArenaBooks,
        counts: Counter[str],
    ) -> None:
        self._index = index
        self._tiers = tiers
        self._slots, self._readings, self._wants, self._writes = books
        self._counts = counts

    def note(self, reads: Sequence[PageRead], now_s: float) -> None:
        """Take the reader's outcomes in."""
        run: list[tuple[Reading, PageRead]] = []
        for read in reads:
            reading = self._readings.end(read.key)
            self._tiers.note_failures(read.key, read.failures)
            self._counts[f"pages_{read.end}"] += 1
            is_read = read.end is ReadEnd.READ
            if run and not (is_read and _follows(reading, run[-1][0])):
                self._admit(run, now_s)
                run = []
            if is_read:
                run.append((reading, read))
            else:
                self._miss(reading, read, now_s)
        if run:
            self._admit(run, now_s)

    def _admit(self, run: Sequence[tuple[Reading, PageRead]], now_s: float) -> None:
        """Pages that follow each other are in their slots."""
        head = run[0][0]
        chain = Chain(
            keys=b"".join(reading.key for reading, _ in run),
            page_bytes=head.size_bytes,
            after=head.after,
        )
        slots = [read.slot for _, read in run]
        added = self._tiers.insert_in_arena(chain, slots, self._slots.evict).added
        # All are held before anybody hears of one: what is told may set others in motion.
        places = [
            self._hold(reading, read, now_s)
            if position < len(added) and added[position]
            else self._find_other(reading, read)
            for position, (reading, read) in enumerate(run)
        ]
        came: list[Came] = []
        for (reading, read), slot in zip(run, places, strict=True):
            if slot is None:
                self._wants.fail(reading.waiters, WantOutcome.NO_ROOM)
            else:
                came.append(Came(reading.waiters, slot, read.tier or ARENA))
        self._wants.fill(came)
        self._writes.note_read(chain, head.tag)

    def _hold(self, reading: Reading, read: PageRead, now_s: float) -> int:
        page = Holding(reading.key, reading.tag, reading.size_bytes, now_s)
        self._slots.hold_read(read.slot, page)
        return read.slot

    def _find_other(self, reading: Reading, read: PageRead) -> int | None:
        """The slot that the page is in already, None where the index has no room for it."""
        self._slots.give_up((read.slot,))
        return find_slot(self._index, reading.key)

    def _miss(self, reading: Reading, read: PageRead, now_s: float) -> None:
        is_over = read.end is ReadEnd.FAILED or reading.deadline_s <= now_s
        if not is_over and self._read_again(reading, read.slot):
            return
        self._slots.give_up((read.slot,))
        is_late = read.end is ReadEnd.LATE
        self._wants.fail(reading.waiters, WantOutcome.LATE if is_late else WantOutcome.FAILED)

    def _read_again(self, reading: Reading, slot: int) -> bool:
        """Somebody came, or stays, after the reader had given the page up."""
        page = self._index.inspect(reading.key)
        tiers = tier_bits(page.places) if page is not None else 0
        return tiers != 0 and self._readings.begin([ReadOrder(reading, slot, tiers)]) == 1


def find_slot(index: PrefixIndex, key: bytes) -> int | None:
    """The slot that holds the page, None where it is not in the arena."""
    page = index.inspect(key)
    return page.slot if page is not None and page.places & 1 else None


def _follows(reading: Reading, last: Reading) -> bool:
    """Whether both fit into one chain."""
    is_alike = (reading.size_bytes, reading.tag) == (last.size_bytes, last.tag)
    return is_alike and reading.after == last.key
