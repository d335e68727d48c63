"""Pages on their way from a tier into the arena: each is read once, for all who wait for it.

    begin ──▶ key and slot are the reader's ──PageRead──▶ end: kept, begun again, or failed
                 │ join, leave                             │
                 └─ nobody is left: cancel ──PageRead──────┘ kept if it was read all the same

A slot that was given to the reader is the reader's until the outcome, cancelled or not.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from bana.radix_global.daemon.gear import PageReader
from bana.radix_global.daemon.owners import PendingWant
from bana.radix_global.reader.entries import tiers_in
from bana.radix_global.reader.wanting import PageWant, Wanted
from bana.slo.errors import StoreError


@dataclasses.dataclass(eq=False)
class Reading:
    """One page being read; `waiters` with the page's position in the prefix of each.

    `after` is the page before it, `tag` the namespace it belongs to.
    """

    key: bytes
    after: bytes
    size_bytes: int
    tag: int
    due_s: float
    waiters: dict[PendingWant, int]
    is_cancelled: bool = False

    @property
    def deadline_s(self) -> float:
        """When the last one gives it up."""
        return max((want.deadline_s for want in self.waiters), default=0.0)


class ReadOrder(NamedTuple):
    """A page to be read into `slot` from one of the `tiers` of a mask."""

    reading: Reading
    slot: int
    tiers: int


class ReadingBook:
    """The pages being read, by key; `reader` reads them. So many reads were `begun` so far."""

    def __init__(self, reader: PageReader) -> None:
        self._reader = reader
        self._readings: dict[bytes, Reading] = {}
        self.begun = 0

    def __len__(self) -> int:
        return len(self._readings)

    def find(self, key: bytes) -> Reading | None:
        """The reading of that page, if there is one."""
        return self._readings.get(key)

    def count_shared(self, want: PendingWant) -> Counter[int]:
        """By place, what others wait for at least as urgently of what `want` wants, in bytes."""
        shared: Counter[int] = Counter()
        for key, places in zip(want.keys, want.places, strict=True):
            reading = self._readings.get(key)
            if reading is not None and reading.due_s <= want.due_s:
                tiers = tiers_in(places)
                shared.update(dict.fromkeys(tiers, reading.size_bytes // max(1, len(tiers))))
        return shared

    def begin(self, orders: Sequence[ReadOrder]) -> int:
        """Have pages read; how many of them, from the first on, the reader has taken."""
        try:
            answers = self._reader.want_all([_describe(order) for order in orders])
        except StoreError:
            return 0
        # It knows only what it was asked here, and that is joined instead of asked twice.
        assert all(answer is Wanted.TAKEN for answer in answers)
        self.begun += len(orders)
        for order in orders:
            order.reading.is_cancelled = False
            self._readings[order.reading.key] = order.reading
        return len(orders)

    def join(self, reading: Reading, want: PendingWant, position: int) -> None:
        """One more waits for the page."""
        reading.waiters[want] = position
        if want.due_s < reading.due_s:
            reading.due_s = want.due_s
            self._reader.hurry(reading.key, want.due_s)

    def leave(self, want: PendingWant, key: bytes) -> None:
        """`want` waits for the page no longer."""
        reading = self._readings.get(key)
        if reading is not None and reading.waiters.pop(want, None) is not None:
            self._cancel_unwanted(reading)

    def serve(self, key: bytes) -> dict[PendingWant, int]:
        """The page has come in another way: who waited for it, and waits no longer."""
        reading = self._readings.get(key)
        if reading is None:
            return {}
        waiters, reading.waiters = reading.waiters, {}
        self._cancel_unwanted(reading)
        return waiters

    def end(self, key: bytes) -> Reading:
        """The reader is done with it; StoreError where it was never asked."""
        reading = self._readings.pop(key, None)
        if reading is None:
            raise StoreError(f"the reader ended {key.hex()}, which it was not asked for")
        return reading

    def _cancel_unwanted(self, reading: Reading) -> None:
        if not reading.waiters and not reading.is_cancelled:
            reading.is_cancelled = True
            self._reader.cancel(reading.key)


def _describe(order: ReadOrder) -> PageWant:
    reading = order.reading
    return PageWant(
        key=reading.key,
        slot=order.slot,
        size_bytes=reading.size_bytes,
        tiers=order.tiers,
        due_s=reading.due_s,
        position=min(reading.waiters.values(), default=0),
        deadline_s=reading.deadline_s,
    )
