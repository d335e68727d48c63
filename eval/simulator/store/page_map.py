"""Which page is in the arena and on which tier, who counts on it, and which goes for another.

page    places (bit 0 the arena)   leases   used
  0         0b011                     2      …      leased: it stays where it is
  1         0b010                     1      …      leased, not in the arena yet: promised a slot
  2         0b001                     0      …      the first to go from a full arena
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bana.eval.simulator.prefixes import PrefixPlan

PageIds: TypeAlias = npt.NDArray[np.int64]
ARENA = 0
IN_ARENA = 1
# How many tiers a mask of places names, at least 1.
TIERS_OF_MASK = np.array([max(1, (mask >> 1).bit_count()) for mask in range(256)], np.float64)
# A page's depth in its prompt counts behind when it was used: a prefix goes from its end.
DEPTH_BITS = 24
# Room is made for so large a part of a full place at once.
EVICTED_SHARE = 64


@dataclasses.dataclass
class _Place:
    capacity_pages: int | None
    pages: int = 0


class PageMap:
    """Every page of every prompt, by number; `capacities` of the arena and of each tier, None for
    all there are. O(pages asked about); where a place is full O(all pages) a making of room.
    """

    def __init__(self, plan: PrefixPlan, capacities: Sequence[int | None]) -> None:
        sizes = np.array(plan.pages, np.int64)
        self._starts: list[int] = (np.cumsum(sizes) - sizes).tolist()
        self._sizes: list[int] = sizes.tolist()
        self._places = [_Place(capacity) for capacity in capacities]
        total = int(sizes.sum())
        self.masks = np.zeros(total, np.uint8)
        self._leases = np.zeros(total, np.int32)
        self._used = np.zeros(total, np.int64)
        self._depths = np.zeros(total, np.int64)
        self._uses = 0
        self._leased = 0
        self._promised = 0
        for path in plan.paths:
            ids = self.list_pages(path)
            self._depths[ids] = np.arange(ids.size)

    def list_pages(self, path: Iterable[int]) -> PageIds:
        """The pages of a path of nodes, from the root on."""
        runs = [np.arange(self._starts[n], self._starts[n] + self._sizes[n]) for n in path]
        return np.concatenate(runs) if runs else np.empty(0, np.int64)

    def count(self, place: int) -> int:
        """How many pages are there."""
        return self._places[place].pages

    def count_to_read(self, place: int, ids: PageIds) -> float:
        """How many of these pages could come from this tier into the arena; what several tiers have
        counts for a share at each.
        """
        bit = 1 << place
        masks = self.masks[ids]
        masks = masks[masks & (bit | IN_ARENA) == bit]
        return float((1.0 / TIERS_OF_MASK[masks]).sum())

    def count_leasable(self, ids: PageIds) -> int:
        """How many of these pages, from the first on, can be leased: all leased ones fit in."""
        capacity = self._places[ARENA].capacity_pages
        if capacity is None:
            return ids.size
        new = np.cumsum(self._leases[ids] == 0)
        return int(np.searchsorted(new, capacity - self._leased, side="right"))

    def touch(self, ids: PageIds) -> None:
        """These pages of one prompt are used."""
        self._uses += 1
        depths = self._depths[ids]
        self._used[ids] = (self._uses << DEPTH_BITS) - depths

    def lease(self, ids: PageIds) -> None:
        """Keep these pages, and a slot of the arena for each."""
        new = ids[self._leases[ids] == 0]
        self._leases[ids] += 1
        self._leased += new.size
        self._promised += int(np.count_nonzero(self.masks[new] & IN_ARENA == 0))
        self._make_room(ARENA, 0)

    def unlease(self, ids: PageIds) -> None:
        """Undo a `lease` of the same pages."""
        self._leases[ids] -= 1
        free = ids[self._leases[ids] == 0]
        self._leased -= free.size
        self._promised -= int(np.count_nonzero(self.masks[free] & IN_ARENA == 0))

    def put(self, place: int, ids: PageIds) -> PageIds:
        """These pages are there now, as far as they find room; those that are."""
        new = ids[self.masks[ids] & (1 << place) == 0]
        if place == ARENA:
            kept = new[self._leases[new] > 0]
            self._promised -= kept.size
            self._add(place, kept)
            new = new[self._leases[new] == 0]
        room = self._make_room(place, new.size)
        self._add(place, new[:room])
        there: PageIds = ids[self.masks[ids] & (1 << place) != 0]
        return there

    def _add(self, place: int, ids: PageIds) -> None:
        self.masks[ids] |= 1 << place
        self._places[place].pages += ids.size

    def _make_room(self, place: int, pages: int) -> int:
        """Room for so many pages beside those that are promised a slot; for how many there is."""
        at = self._places[place]
        if at.capacity_pages is None:
            return pages
        taken = at.pages + (self._promised if place == ARENA else 0)
        short = taken + pages - at.capacity_pages
        if short > 0:
            taken -= self._evict(place, max(short, at.capacity_pages // EVICTED_SHARE))
        return max(0, min(pages, at.capacity_pages - taken))

    def _evict(self, place: int, pages: int) -> int:
        """Give up so many pages that nobody counts on, longest unused first; how many it were."""
        bit = 1 << place
        idle = np.flatnonzero((self.masks & bit != 0) & (self._leases == 0))
        if idle.size > pages:
            idle = idle[np.argpartition(self._used[idle], pages - 1)[:pages]]
        self.masks[idle] &= 0xFF ^ bit
        self._places[place].pages -= idle.size
        return int(idle.size)
