"""Pages on their way from the arena to the tiers: leased until the writer is done with them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from bana.radix_global.daemon.gear import Gear
from bana.radix_global.daemon.owners import UNKNOWN_NAMESPACE
from bana.radix_global.daemon.tier_books import TierBooks, tier_bits
from bana.radix_global.index import PrefixIndex
from bana.radix_global.keys import KEY_BYTES, count_keys, split_keys
from bana.radix_global.pages import Chain
from bana.radix_global.stores.store import PageOrigin
from bana.radix_global.writer.jobs import PageWritten, WriteEnd, WriteJob
from bana.slo.errors import StoreError

WRITER = "writer"
_THERE = frozenset({WriteEnd.WRITTEN, WriteEnd.PRESENT})


@dataclasses.dataclass(eq=False)
class Batch:
    """The pages of one chain under one lease, until no outcome of theirs is missing."""

    lease_id: int
    missing: int


@dataclasses.dataclass(eq=False)
class Writing:
    """One page being written, as a chain of its own, and the lease that keeps it."""

    batch: Batch
    chain: Chain


class WriteBook:
    """What is being written, by key; of the arena, at most `writing_share` at a time."""

    def __init__(
        self,
        index: PrefixIndex,
        tiers: TierBooks,
        gear: Gear,
        writing_share: float,
        counts: Counter[str],
    ) -> None:
        self._index = index
        self._tiers = tiers
        self._writer = gear.writer
        self._placer = gear.placer
        self._counts = counts
        slots = gear.arena.layout.slots
        self._most_waiting = max(1, int(writing_share * slots / max(1, len(tiers.numbers))))
        self._waiting = dict.fromkeys(tiers.numbers, 0)
        self._writings: dict[bytes, Writing] = {}

    def __len__(self) -> int:
        return len(self._writings)

    def offer_new(self, chain: Chain, tag: int) -> None:
        """Pages that were just published."""
        self._offer(chain, tag, 0)

    def is_wanted(self, key: bytes, places: int, reads: int) -> bool:
        """Whether a page that is read so often should be on further tiers. O(tiers)."""
        return self._placer.choose_tiers(key, tier_bits(places), reads) != 0

    def offer_read(self, chain: Chain, tag: int, reads: int) -> None:
        """Pages that were just asked for, `reads` times by now."""
        if tag != UNKNOWN_NAMESPACE:
            self._offer(chain, tag, reads)

    def note_read(self, chain: Chain, tag: int) -> None:
        """Pages that a tier has just given."""
        self._placer.note_read(len(chain.keys) // KEY_BYTES * chain.page_bytes)
        self.offer_read(chain, tag, 1)

    def note(self, written: Sequence[PageWritten]) -> None:
        """Take the writer's outcomes in."""
        for page in written:
            self._counts[f"writes_{page.end}"] += 1
            writing = self._writings.get(page.key)
            if writing is None:
                raise StoreError(f"the writer ended {page.key.hex()}, which it was not given")
            if page.end in _THERE:
                self._tiers.note_written(page.tier, writing.chain)
            self._tiers.note_lost(page.tier, page.lost)
            self._waiting[page.tier] -= 1
            if page.is_last:
                del self._writings[page.key]
                self._end_one(writing.batch)

    def _offer(self, chain: Chain, tag: int, reads: int) -> None:
        """Put the pages of `chain`, all in the arena, where the placement wants them.

        Pages that are being written are left alone; without tiers all are.
        """
        if not self._waiting:
            return
        try:
            lease = self._index.lease(WRITER, chain.keys)
        except StoreError:
            self._counts["unwritten_pages"] += count_keys(chain.keys)
            return
        # One more than there are, so that it does not end before all are offered.
        batch = Batch(lease.lease_id, missing=1)
        keys = split_keys(chain.keys)[: lease.match.pages]
        for position, key in enumerate(keys):
            places = lease.match.places[position]
            if not places & 1 or key in self._writings:
                continue
            if not reads and not tier_bits(places):
                self._placer.note_new(chain.page_bytes)
            tiers = self._choose(key, tier_bits(places), reads)
            if tiers:
                after = keys[position - 1] if position else chain.after
                job = WriteJob(
                    key=key,
                    origin=PageOrigin(after, tag),
                    slot=lease.match.slots[position],
                    size_bytes=chain.page_bytes,
                    tiers=tiers,
                )
                self._begin(job, batch)
        self._end_one(batch)

    def _choose(self, key: bytes, held: int, reads: int) -> int:
        """The tiers to write to: those that fell behind get no more, and others their first copies.

        Or the arena would soon hold nothing but what waits for a tier that stalls.
        """
        chosen = self._placer.choose_tiers(key, held, reads)
        swift = sum(1 << tier for tier, n in self._waiting.items() if n < self._most_waiting)
        tiers = chosen & swift
        if chosen and not tiers:
            self._counts["passed_over_tiers"] += 1
            return 0 if held else swift & -swift
        return tiers

    def _begin(self, job: WriteJob, batch: Batch) -> None:
        alone = Chain(keys=job.key, page_bytes=job.size_bytes, after=job.origin.parent)
        try:
            self._writer.offer(job)
        except StoreError:
            self._counts["unwritten_pages"] += 1
            return
        self._writings[job.key] = Writing(batch, alone)
        batch.missing += 1
        for tier in self._waiting:
            self._waiting[tier] += job.tiers >> tier & 1

    def _end_one(self, batch: Batch) -> None:
        batch.missing -= 1
        if not batch.missing:
            self._index.release(WRITER, batch.lease_id)
