"""The prefix index in columns: one row a page, no object a page, whole chains at a time.

`columns.py` draws the rows. Each place keeps books of its own on who is a leaf there (`place.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bana.radix_global.columns import ROOT, PageColumns, Rows
from bana.radix_global.index import PrefixIndex
from bana.radix_global.key_table import KeyTable, KeyWords, read_words
from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.lease_book import LeaseBook
from bana.radix_global.pages import (
    ARENA,
    Chain,
    Evicted,
    IndexCounts,
    IndexLimits,
    Inserted,
    Lease,
    Match,
    PageState,
)
from bana.radix_global.place import Place
from bana.slo.errors import StoreError

ARENA_BIT = 1 << ARENA


class PrefixTree(PrefixIndex):
    """An index of at most `limits.max_pages` pages.

    With n keys given, match, touch and insert are O(n), lease and release O(depth), evict
    O(log pages) a page, and each use of a leaf costs one such step of a later eviction.
    """

    def __init__(self, limits: IndexLimits) -> None:
        self._table = KeyTable(limits.max_pages)
        self._max_pages = limits.max_pages
        self._pages = PageColumns(limits.max_pages + 1)
        self._places = [Place(number, self._pages) for number in range(limits.tiers + 1)]
        self._book = LeaseBook(limits.max_leases)
        self._resident_pages = 0
        self._last_stamp = 0

    def match(self, keys: bytes) -> Match:
        return self._describe(self._find_resident(keys))

    def touch(self, keys: bytes) -> int:
        rows = self._find_resident(keys)
        self._mark_used(rows)
        return len(rows)

    def insert_in_arena(self, chain: Chain, slots: Sequence[int]) -> Inserted:
        if len(slots) * KEY_BYTES != len(chain.keys):
            raise StoreError(
                f"{len(slots)} slots for {len(chain.keys)} bytes of keys; send one each"
            )
        numbers = np.array(slots, np.int32)
        rows = self._take_rows(chain)
        is_new = self._places[ARENA].arrive(rows)
        self._pages.slot.many[rows[is_new]] = numbers[: len(rows)][is_new]
        return Inserted(tuple(is_new.tolist()))

    def insert_on_tier(self, chain: Chain, tier: int) -> Inserted:
        place = self._tier(tier)
        is_new = place.arrive(self._take_rows(chain))
        return Inserted(tuple(is_new.tolist()))

    def lease(self, owner: str, keys: bytes) -> Lease:
        self._book.require_room()
        rows = self._find_resident(keys)
        self._link(rows)
        rows = self._cut_unlinked(rows)
        self._mark_used(rows)
        deepest = int(rows[-1]) if len(rows) else ROOT
        self._add_leases(deepest, 1)
        return Lease(self._book.add(owner, deepest), self._describe(rows))

    def release(self, owner: str, lease_id: int) -> bool:
        deepest = self._book.pop(owner, lease_id)
        if deepest is None:
            return False
        self._end_lease(deepest)
        return True

    def release_owner(self, owner: str) -> int:
        ends = self._book.pop_owner(owner)
        for deepest in ends:
            self._end_lease(deepest)
        return len(ends)

    def evict(self, place: int, *, pages: int = 0, size_bytes: int = 0) -> Evicted:
        holder = self._place(place)
        goal_bytes = holder.held_bytes - size_bytes
        gone: list[int] = []
        while len(gone) < pages or holder.held_bytes > goal_bytes:
            row = holder.next_to_go()
            if row is None:
                break
            self._vacate(row, holder)
            gone.append(row)
        # What has left can be read until its row is taken again.
        rows = np.array(gone, np.int64)
        return Evicted(
            keys=self._table.keys_of(rows),
            slots=tuple(self._pages.slot.many[rows].tolist()) if place == ARENA else (),
            size_bytes=int(self._pages.size_bytes.many[rows].sum(dtype=np.int64)),
        )

    def drop_from_tier(self, key: bytes, tier: int) -> bool:
        holder = self._tier(tier)
        row = self._find_one(key)
        if not holder.holds(row):
            return False
        self._vacate(row, holder)
        return True

    def drop_from_arena(self, key: bytes) -> int | None:
        row = self._find_one(key)
        if not self._places[ARENA].holds(row) or self._pages.leases.one[row]:
            return None
        slot: int = self._pages.slot.one[row]
        self._vacate(row, self._places[ARENA])
        return slot

    def inspect(self, key: bytes) -> PageState | None:
        row = self._find_one(key)
        if row == ROOT:
            return None
        pages, parent = self._pages, self._pages.parent.one[row]
        return PageState(
            parent=b"" if parent == ROOT else self._table.keys_of(np.array([parent])),
            places=pages.mask.one[row],
            slot=pages.slot.one[row] if self._places[ARENA].holds(row) else 0,
            children=pages.children.one[row],
            leases=pages.leases.one[row],
            size_bytes=pages.size_bytes.one[row] if pages.mask.one[row] else 0,
        )

    def counts(self) -> IndexCounts:
        return IndexCounts(
            pages=self._resident_pages,
            absent=self._max_pages - self._table.free_rows - self._resident_pages,
            leases=len(self._book),
            places=tuple(place.count() for place in self._places),
        )

    # Finding and taking rows. An unknown key finds the root, which resides nowhere.

    def _find_one(self, key: bytes) -> int:
        if len(key) != KEY_BYTES:
            raise StoreError(f"{len(key)} bytes are no key; send {KEY_BYTES}")
        return int(self._table.find(read_words(key))[0])

    def _find_resident(self, keys: bytes) -> Rows:
        """The rows of the longest prefix whose pages reside somewhere."""
        rows = self._table.find(read_words(keys))
        ends = np.flatnonzero(self._pages.mask.many[rows] == 0)
        return rows[: ends[0]] if len(ends) else rows

    def _take_rows(self, chain: Chain) -> Rows:
        """The rows of the chain's pages, linked, about to arrive; fewer where the index is full."""
        words = read_words(chain.after + chain.keys)
        context = len(chain.after) // KEY_BYTES
        rows = self._table.find(words)
        missing = np.flatnonzero(rows == ROOT)
        room = self._table.free_rows
        if len(missing) > room:
            rows, missing = rows[: missing[room]], missing[:room]
        if len(rows) <= context:
            return rows[:0]
        if len(missing):
            self._add_rows(rows, missing, words)
        self._link(rows)
        if context:
            # It was added in vain where the first page hangs elsewhere.
            self._forget_unneeded(int(rows[0]))
        self._welcome(rows[context:], chain.page_bytes)
        return rows[context:]

    def _add_rows(self, rows: Rows, missing: Rows, words: KeyWords) -> None:
        """Fill in the `missing` places of `rows`, each new row below the one before it."""
        rows[missing] = self._table.add(words[missing])
        above = _above(rows)[missing]
        self._pages.parent.many[rows[missing]] = above
        self._pages.children.many[above] += 1

    def _welcome(self, rows: Rows, page_bytes: int) -> None:
        self._mark_used(rows)
        homeless = rows[self._pages.mask.many[rows] == 0]
        self._pages.size_bytes.many[homeless] = page_bytes
        self._resident_pages += len(homeless)

    def _vacate(self, row: int, holder: Place) -> None:
        holder.leave(row)
        if not self._pages.mask.one[row]:
            self._resident_pages -= 1
            self._forget_unneeded(row)

    def _forget_unneeded(self, row: int) -> None:
        """Give up the row, and then its ancestors, while nothing needs them."""
        mask, children, leases = (
            self._pages.mask.one,
            self._pages.children.one,
            self._pages.leases.one,
        )
        while row != ROOT and not (mask[row] or children[row] or leases[row]):
            parent = self._pages.parent.one[row]
            self._table.remove(row)
            children[parent] -= 1
            row = parent

    # Links

    def _link(self, rows: Rows) -> None:
        """Hang each row below the one before it, where nobody has said yet where it hangs."""
        above = _above(rows)
        for index in np.flatnonzero(self._pages.parent.many[rows] != above).tolist():
            self._adopt(int(rows[index]), int(above[index]))

    def _adopt(self, row: int, parent: int) -> None:
        if self._pages.parent.one[row] != ROOT or self._is_above(row, parent):
            return
        self._pages.parent.one[row] = parent
        self._pages.children.one[ROOT] -= 1
        self._pages.children.one[parent] += 1
        for place in self._places:
            place.move_child(row, ROOT, parent)
        self._add_leases(parent, self._pages.leases.one[row])

    def _is_above(self, ancestor: int, row: int) -> bool:
        """Whether `ancestor` is `row` or above it. True hashes form no cycle, forged ones may."""
        while row not in (ROOT, ancestor):
            row = self._pages.parent.one[row]
        return row == ancestor

    def _cut_unlinked(self, rows: Rows) -> Rows:
        """The rows up to where one hangs elsewhere: all are on the path of the last."""
        strays = np.flatnonzero(self._pages.parent.many[rows[1:]] != rows[:-1])
        return rows[: strays[0] + 1] if len(strays) else rows

    # Leases and recency

    def _add_leases(self, row: int, count: int) -> None:
        parents, leases = self._pages.parent.one, self._pages.leases.one
        while row != ROOT:
            leases[row] += count
            row = parents[row]

    def _end_lease(self, deepest: int) -> None:
        parents, leases, parked = (
            self._pages.parent.one,
            self._pages.leases.one,
            self._pages.parked.one,
        )
        row = deepest
        while row != ROOT:
            leases[row] -= 1
            if parked[row] and not leases[row]:
                for place in self._places:
                    place.unpark(row)
            row = parents[row]
        self._forget_unneeded(deepest)

    def _mark_used(self, rows: Rows) -> None:
        """Used just now, the first one last, so that a chain goes from its end."""
        first = self._last_stamp + 1
        self._last_stamp += len(rows)
        self._pages.stamp.many[rows[::-1]] = np.arange(first, first + len(rows))

    # Answers

    def _describe(self, rows: Rows) -> Match:
        masks = self._pages.mask.many[rows]
        slots = np.where(masks & ARENA_BIT, self._pages.slot.many[rows], 0)
        return Match(masks.tobytes(), tuple(slots.tolist()))

    def _place(self, number: int) -> Place:
        if not 0 <= number < len(self._places):
            raise StoreError(f"place {number} is none of the {len(self._places)} there are")
        return self._places[number]

    def _tier(self, number: int) -> Place:
        if number == ARENA:
            raise StoreError(f"place {ARENA} is the arena; name a tier")
        return self._place(number)


def _above(rows: Rows) -> Rows:
    """The row before each one, the root before the first."""
    above = np.empty_like(rows)
    above[:1] = ROOT
    above[1:] = rows[:-1]
    return above
