"""Everything that works over one arena, put together: slots, wants, readings, arrivals, writes."""

from __future__ import annotations

from collections import Counter

from bana.radix_global.daemon.arrivals import ArenaBooks, Arrivals
from bana.radix_global.daemon.gear import Gear
from bana.radix_global.daemon.limits import StoreLimits
from bana.radix_global.daemon.owners import Owner
from bana.radix_global.daemon.readings import ReadingBook
from bana.radix_global.daemon.slots import Holding, SlotBook, SlotState
from bana.radix_global.daemon.tier_books import TierBooks
from bana.radix_global.daemon.wants import FindWeather, WantBook
from bana.radix_global.daemon.writes import WriteBook
from bana.radix_global.index import PrefixIndex
from bana.radix_global.keys import split_keys
from bana.radix_global.messages import Publish, Published, Reserved
from bana.radix_global.pages import Chain

RISEN_STEP = 64


class Floor:
    """One arena and who works on it; built once the size of a page is known."""

    def __init__(
        self,
        gear: Gear,
        index: PrefixIndex,
        tiers: TierBooks,
        limits: StoreLimits,
        counts: Counter[str],
        find_weather: FindWeather,
    ) -> None:
        self.gear = gear
        self.layout = gear.arena.layout
        self._index = index
        self._tiers = tiers
        self._limits = limits
        self.slots = SlotBook(gear.arena, index, gear.spares)
        self.readings = ReadingBook(gear.reader)
        self.wants = WantBook(index, self.slots, self.readings, limits, counts, find_weather)
        self.writes = WriteBook(index, tiers, gear, limits.writing_share, counts)
        self.arrivals = Arrivals(
            index, tiers, ArenaBooks(self.slots, self.readings, self.wants, self.writes), counts
        )
        self._counts = counts
        self._most_reserved = max(1, int(limits.reserved_share * self.layout.slots))

    def reserve(self, owner: Owner, pages: int) -> Reserved:
        """Slots for `owner` to write into, as many as its bounds and the arena allow."""
        own = self._limits.reserved_pages - len(self.slots.reserved(owner.client))
        room = self._most_reserved - self.slots.count(SlotState.RESERVED)
        slots = self.slots.reserve(owner.client, max(0, min(pages, own, room)))
        self._counts["short_reservations"] += len(slots) < pages
        return Reserved(slots, tuple(self.slots.generation(slot) for slot in slots))

    def publish(self, owner: Owner, message: Publish, now_s: float) -> Published:
        """Take pages that `owner` wrote; StoreError where it may not have written them."""
        self.slots.require_reserved(owner.client, message.slots)
        chain = Chain(keys=message.keys, page_bytes=owner.page_bytes, after=message.after)
        added = self._tiers.insert_in_arena(chain, message.slots, self.slots.evict).added
        taken: list[tuple[bytes, int]] = []
        returned: list[int] = []
        for position, (key, slot) in enumerate(
            zip(split_keys(message.keys), message.slots, strict=True)
        ):
            if position < len(added) and added[position]:
                page = Holding(key, owner.tag, owner.page_bytes, now_s)
                self.slots.hold_published(owner.client, slot, page)
                taken.append((key, slot))
            else:
                returned.append(slot)
        self._counts["published_pages"] += len(taken)
        self._counts["known_already_pages"] += len(returned)
        for key, slot in taken:
            self.wants.serve(key, slot)
        # Also for pages that were known before: somebody may await what follows them.
        self.wants.grow(split_keys(message.keys))
        if taken:
            self.writes.offer_new(chain, owner.tag)
        return Published(len(taken), tuple(returned))

    def write_what_is_read(self) -> None:
        """Offer pages that are read more than before to further tiers, a few at a time."""
        for slot in self.slots.take_risen(RISEN_STEP):
            page = self.slots.holding(slot)
            state = None if page is None else self._index.inspect(page.key)
            if page is None or state is None:
                continue
            if self.writes.is_wanted(page.key, state.places, page.reads):
                chain = Chain(keys=page.key, page_bytes=page.size_bytes, after=state.parent)
                self.writes.offer_read(chain, page.namespace, page.reads)

    def let_go(self, owner: Owner, kept: frozenset[int] = frozenset()) -> None:
        """End all that `owner` holds, but for the reserved slots in `kept`."""
        self.wants.withdraw_all(owner)
        self.wants.release_all(owner)
        self._index.release_owner(owner.name)
        gone = self.slots.reserved(owner.client) - kept
        if gone:
            self.slots.end_reservation(owner.client, tuple(sorted(gone)))
