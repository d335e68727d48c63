"""The threads that write: one a tier, a thin adapter between the backlog and the stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from bana.radix_global.crew import Crew
from bana.radix_global.stores.store import Store, Write, WriteOutcome
from bana.radix_global.writer.backlog import WriteBacklog
from bana.radix_global.writer.jobs import PageWritten, WriteJob, WriteReport
from bana.radix_global.writer.options import WriterOptions
from bana.slo.clock import Clock

# An idle thread looks again now and then, though it is told of all that matters.
IDLE_S = 5.0


class Writer:
    """Copies pages from the arena to tiers, after the reads; no call blocks but `close`.

    `view(slot)` is a slot's bytes, from any thread. `is_read_from(tier)` says whether reads want
    the tier: that is what writes give way to. `notify` is called, from any thread, when there are
    outcomes after there were none; it must return at once and not raise. `clock` is a real one.
    """

    def __init__(
        self,
        tiers: Mapping[int, Store],
        view: Callable[[int], memoryview],
        is_read_from: Callable[[int], bool],
        clock: Clock,
        notify: Callable[[], None],
        options: WriterOptions,
    ) -> None:
        self._backlog = WriteBacklog(tuple(tiers), is_read_from, options)
        self._view = view
        self._clock = clock
        self._notify = notify
        self._recheck_s = options.recheck_s
        self._crew = Crew(clock)
        self._lock = self._crew.lock
        self._idle = {tier: self._crew.hang_bell() for tier in tiers}
        self._watching = self._crew.hang_bell()
        self._is_told = False
        for tier, store in tiers.items():
            self._crew.hire(f"bana-write-{tier}", partial(self._work, tier, store))
        self._crew.hire("bana-write-watch", self._watch)

    def start(self) -> None:
        """Begin to write; call once. A stalled write does not keep a process."""
        self._crew.start()

    def offer(self, job: WriteJob) -> None:
        """Have a page written, some time; its slot is in use until its last outcome.

        Where the backlog is full the outcome, CROWDED_OUT, is there at once. StoreError when
        closed or a tier is unknown.
        """
        with self._deciding() as now_s:
            self._backlog.offer(job, now_s)
            for condition in (*self._idle.values(), self._watching):
                condition.notify()

    def take_outcomes(self) -> list[PageWritten]:
        """What came about since the last call."""
        with self._lock:
            self._is_told = False
            return self._backlog.take_outcomes()

    def report(self) -> tuple[WriteReport, ...]:
        """How each tier fares."""
        with self._lock:
            return self._backlog.report(self._clock.now_s())

    def close(self, timeout_s: float) -> int:
        """Give up what waits, and wait for writes under way; how many threads are still stuck.

        The slots that those read stay in use for as long as the process lives.
        """
        with self._deciding():
            self._backlog.close()
            self._crew.dismiss()
        return self._crew.join(timeout_s)

    def _work(self, tier: int, store: Store) -> None:
        """What one writing thread does for its life."""
        while (job := self._await_job(tier)) is not None:
            write = self._write(store, job)
            with self._deciding() as now_s:
                self._backlog.finish(tier, write, now_s)

    def _await_job(self, tier: int) -> WriteJob | None:
        """The tier's next job, None when closing."""
        while not self._crew.is_dismissed:
            with self._deciding() as now_s:
                job = self._backlog.next_write(tier, now_s)
                if job is not None:
                    return job
            with self._lock:
                self._crew.rest(self._idle[tier], self._pause_s(tier))
        return None

    def _pause_s(self, tier: int) -> float:
        """Nobody tells of the end of reads: what gives way to them looks again."""
        return self._recheck_s if self._backlog.has_waiting(tier) else IDLE_S

    def _write(self, store: Store, job: WriteJob) -> Write:
        try:
            return store.put(job.key, self._view(job.slot)[: job.size_bytes], job.origin)
        except Exception:
            # A store answers expected faults; whatever else happens must not cost the thread.
            return Write(WriteOutcome.FAILED)

    def _watch(self) -> None:
        """What the watching thread does for its life."""
        while not self._crew.is_dismissed:
            with self._deciding() as now_s:
                self._backlog.expire(now_s)
            with self._lock:
                left_s = self._backlog.look_at_s - self._clock.now_s()
                self._crew.rest(self._watching, min(IDLE_S, left_s))

    @contextmanager
    def _deciding(self) -> Iterator[float]:
        """The lock with the time now; afterwards whoever waits for outcomes is told."""
        with self._lock:
            yield self._clock.now_s()
            tells = self._backlog.has_outcomes() and not self._is_told
            self._is_told = self._is_told or tells
        if tells:
            self._notify()
