"""What the index believes of the tiers, kept true by what they say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from bana.radix_global.index import PrefixIndex
from bana.radix_global.keys import count_keys
from bana.radix_global.pages import ARENA, Chain, Inserted
from bana.radix_global.reader.wanting import TierFailure
from bana.radix_global.recovering import recover_pages
from bana.radix_global.stores.store import HeldPage, ReadOutcome, Store

_GONE = frozenset({ReadOutcome.MISSING, ReadOutcome.SHORT, ReadOutcome.CORRUPT})
FORGET_PAGES = 1024


class TierBooks:
    """The tiers by place; where the index is full, the pages used longest ago are forgotten.

    What is forgotten stays on its tier, and is found again when the daemon starts anew.
    """

    def __init__(
        self,
        index: PrefixIndex,
        max_pages: int,
        stores: Mapping[int, Store],
        counts: Counter[str],
    ) -> None:
        self._index = index
        self._max_pages = max_pages
        self._stores = stores
        self._counts = counts

    @property
    def numbers(self) -> tuple[int, ...]:
        """The tiers there are."""
        return tuple(self._stores)

    def note_failures(self, key: bytes, failures: Iterable[TierFailure]) -> None:
        """Tiers did not give the page."""
        for failure in failures:
            self._counts[f"reads_{failure.outcome}"] += 1
            if failure.outcome is ReadOutcome.WRONG_LENGTH:
                # A page of another length than its namespace's is of no use, though it is held.
                self._drop(failure.tier, key)
            elif failure.outcome in _GONE:
                self.note_lost(failure.tier, (key,))

    def note_found(self, tier: int, pages: Sequence[HeldPage]) -> None:
        """These were told to be on the tier; one that was lost since then is not."""
        held = [page for page in pages if self._stores[tier].holds(page.key)]
        self._make_room(len(held))
        recovered = recover_pages(self._index, tier, held)
        self._counts["found_pages"] += recovered.taken
        self._counts["unindexed_pages"] += recovered.refused

    def note_written(self, tier: int, page: Chain) -> None:
        """This one page was told to be written; what took it away may have been told before."""
        if self._stores[tier].holds(page.keys):
            self._index.insert_on_tier(page, tier)

    def note_lost(self, tier: int, keys: Iterable[bytes]) -> None:
        """These were told to be on the tier no longer; one that was put there since then is."""
        for key in keys:
            if not self._stores[tier].holds(key):
                self._drop(tier, key)

    def insert_in_arena(
        self, chain: Chain, slots: Sequence[int], evict: Callable[[int], object]
    ) -> Inserted:
        """As PrefixIndex, but that room is made for the chain where the index is full; without
        tiers by `evict`, which takes so many pages out of the arena.
        """
        inserted = self._index.insert_in_arena(chain, slots)
        if len(inserted.added) == len(slots):
            return inserted
        if self._stores:
            self._make_room(len(slots))
        else:
            evict(len(slots))
        rest = self._index.insert_in_arena(chain, slots)
        # Pages that the first call took are not new to the second.
        added = tuple(
            second or (position < len(inserted.added) and inserted.added[position])
            for position, second in enumerate(rest.added)
        )
        return Inserted(added)

    def _drop(self, tier: int, key: bytes) -> None:
        self._counts["lost_pages"] += self._index.drop_from_tier(key, tier)

    def _make_room(self, pages: int) -> None:
        """Have the index know fewer pages, if it could not take `pages` more."""
        counts = self._index.counts()
        lacking = pages - (self._max_pages - counts.pages - counts.absent)
        if lacking <= 0:
            return
        held = {tier: counts.places[tier].pages for tier in self._stores}
        for tier in sorted(held, key=lambda tier: (-held[tier], tier)):
            gone = self._index.evict(tier, pages=max(lacking, FORGET_PAGES))
            self._counts["forgotten_pages"] += count_keys(gone.keys)
            return


def tier_bits(places: int) -> int:
    """The tiers of a mask of places."""
    return places & ~(1 << ARENA)
