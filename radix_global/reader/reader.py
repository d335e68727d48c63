"""The threads that read: a thin adapter between the board, which decides, and the stores.

    daemon thread ──want, hurry, cancel──▶ board ◀──finish, next_read── tier 1: `width` threads
                  ◀──take_outcomes────────   ▲                          tier 2: …
                                             └──expire── one that watches stalls and deadlines

One lock, held for decisions only: never while a store reads or anybody is notified.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from bana.radix_global.crew import Crew
from bana.radix_global.reader.board import Board
from bana.radix_global.reader.entries import Lane, Reading, tiers_in
from bana.radix_global.reader.options import ReaderOptions
from bana.radix_global.reader.policies import ReadPolicy
from bana.radix_global.reader.report import TierReport
from bana.radix_global.reader.wanting import PageRead, PageWant, Wanted
from bana.radix_global.stores.store import ReadOutcome, Store
from bana.slo.clock import Clock

# An idle thread looks again now and then, though it is told of all that matters.
IDLE_S = 5.0


@dataclasses.dataclass(frozen=True)
class ReadTier:
    """A tier, and how many threads read from it."""

    store: Store
    width: int


@dataclasses.dataclass(frozen=True)
class SlotAccess:
    """How slots are reached: `view(slot)` is its writable bytes, from any thread.

    `spares` are the reader's own from now on, at least one for each thread.
    """

    view: Callable[[int], memoryview]
    spares: Sequence[int]


class Reader:
    """Reads pages from all tiers at once; no call blocks but `close`.

    Every page wanted has exactly one outcome, whatever its tiers do: by its deadline at the
    latest. `notify` is called, from any thread, when there are outcomes after there were none; it
    must return at once and not raise. `clock` is a real one: threads wait in its seconds.
    """

    def __init__(
        self,
        tiers: Mapping[int, ReadTier],
        slots: SlotAccess,
        policy: ReadPolicy,
        clock: Clock,
        notify: Callable[[], None],
        options: ReaderOptions,
    ) -> None:
        widths = {number: tier.width for number, tier in tiers.items()}
        self._board = Board(widths, slots.spares, policy, options)
        self._view = slots.view
        self._clock = clock
        self._notify = notify
        self._crew = Crew(clock)
        self._lock = self._crew.lock
        self._idle = {number: self._crew.hang_bell() for number in tiers}
        self._watching = self._crew.hang_bell()
        self._watch_until_s = -math.inf
        self._is_told = False
        self._crew.hire("bana-read-watch", self._watch)
        for number, tier in tiers.items():
            for index, lane in enumerate(self._board.lanes(number)):
                name = f"bana-read-{number}.{index}"
                self._crew.hire(name, partial(self._work, lane, tier.store))

    def start(self) -> None:
        """Begin to read; call once. A stalled read does not keep a process."""
        self._crew.start()

    def want(self, page: PageWant) -> Wanted:
        """Have a page read, as `want_all`."""
        return self.want_all([page])[0]

    def want_all(self, pages: Sequence[PageWant]) -> tuple[Wanted, ...]:
        """Have pages read, the most urgent first; TAKEN slots are the reader's until the outcome.

        StoreError, and none taken, when closed, beyond `max_wanted`, or a tier is unknown.
        """
        with self._deciding() as now_s:
            return self._board.want(pages, now_s)

    def hurry(self, key: bytes, due_s: float) -> bool:
        """Raise a page's urgency, if `due_s` is earlier; False if it is not wanted."""
        with self._deciding():
            return self._board.hurry(key, due_s)

    def cancel(self, key: bytes) -> bool:
        """End the wait for a page: its outcome is there at once; False if it is not wanted."""
        with self._deciding():
            return self._board.cancel(key)

    def take_outcomes(self) -> list[PageRead]:
        """What came about since the last call."""
        with self._lock:
            self._is_told = False
            return self._board.take_outcomes()

    def is_wanted(self, tier: int) -> bool:
        """Whether the tier has pages to read: what defers writes to it."""
        with self._lock:
            return self._board.is_wanted(tier)

    def report(self) -> tuple[TierReport, ...]:
        """How each tier fares."""
        with self._lock:
            return self._board.report(self._clock.now_s())

    @property
    def policy_faults(self) -> int:
        """How often the policy broke its law, and any tier was let read instead."""
        return self._board.policy_faults

    def close(self, timeout_s: float) -> int:
        """Cancel everything, and wait for reads under way; how many threads are still stuck.

        Their slots stay in their hands for as long as the process lives.
        """
        with self._deciding():
            self._board.close()
            self._crew.dismiss()
        return self._crew.join(timeout_s)

    def _work(self, lane: Lane, store: Store) -> None:
        """What one reading thread does for its life."""
        reading = self._await_reading(lane)
        while reading is not None:
            outcome = self._read(store, reading)
            with self._deciding() as now_s:
                self._board.finish(lane, outcome, now_s)
                reading = self._board.next_read(lane, now_s)
            if reading is None:
                reading = self._await_reading(lane)

    def _await_reading(self, lane: Lane) -> Reading | None:
        """The lane's next read, None when closing."""
        with self._lock:
            while not self._crew.is_dismissed:
                reading = self._board.next_read(lane, self._clock.now_s())
                if reading is not None:
                    self._wake_watch()
                    return reading
                self._crew.rest(self._idle[lane.tier], IDLE_S)
        return None

    def _read(self, store: Store, reading: Reading) -> ReadOutcome:
        try:
            target = self._view(reading.slot)[: reading.size_bytes]
            return store.read(reading.key, target)
        except Exception:
            # A store answers expected faults; whatever else happens must not cost the thread.
            return ReadOutcome.FAILED

    def _watch(self) -> None:
        """What the watching thread does for its life."""
        while not self._crew.is_dismissed:
            with self._deciding() as now_s:
                self._board.expire(now_s)
            with self._lock:
                self._await_event()

    def _await_event(self) -> None:
        """Wait until something may be overdue, or is to be looked at earlier."""
        self._watch_until_s = self._board.look_at_s
        left_s = self._watch_until_s - self._clock.now_s()
        self._crew.rest(self._watching, min(IDLE_S, left_s))
        self._watch_until_s = -math.inf

    @contextmanager
    def _deciding(self) -> Iterator[float]:
        """The lock with the time now; afterwards those are woken and told whom it concerns."""
        with self._lock:
            yield self._clock.now_s()
            for tier in tiers_in(self._board.take_wakes()):
                self._idle[tier].notify_all()
            self._wake_watch()
            tells = self._board.has_outcomes() and not self._is_told
            self._is_told = self._is_told or tells
        if tells:
            self._notify()

    def _wake_watch(self) -> None:
        if self._board.look_at_s < self._watch_until_s:
            self._watching.notify()
