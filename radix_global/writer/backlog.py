"""What waits to be written to each tier, and what is written next: decisions only, no thread.

offered ──▶ waits: first come, first served ──▶ under way ──▶ WRITTEN, FULL, …
   │           │ gives way to reads for defer_s
   └─ full ────┴─ a copy exists, or give_up_s passed ──▶ CROWDED_OUT
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Sequence

from bana.radix_global.stores.store import Write, WriteOutcome
from bana.radix_global.tier_meter import TierMeter
from bana.radix_global.writer.jobs import PageWritten, WriteEnd, WriteJob, WriteReport
from bana.radix_global.writer.options import WriterOptions
from bana.slo.errors import ConfigError, StoreError

_ENDS = {
    WriteOutcome.WRITTEN: WriteEnd.WRITTEN,
    WriteOutcome.PRESENT: WriteEnd.PRESENT,
    WriteOutcome.FULL: WriteEnd.FULL,
    WriteOutcome.REFUSED: WriteEnd.REFUSED,
    WriteOutcome.LATE: WriteEnd.LATE,
}
_HELD = (WriteEnd.WRITTEN, WriteEnd.PRESENT)


@dataclasses.dataclass(eq=False, slots=True)
class PendingJob:
    """A job until its last outcome; `copies` are those that exist or are being written."""

    job: WriteJob
    offered_s: float
    pending: int
    copies: int = 0


class TierQueue:
    """One tier's jobs in the order of their arrival, and the one under way."""

    def __init__(self, tier: int, memory_s: float) -> None:
        self.tier = tier
        self.jobs: deque[PendingJob] = deque()
        self.waiting_bytes = 0
        self.writing: PendingJob | None = None
        self.meter = TierMeter(memory_s)
        self.crowded_out = 0

    def append(self, pending: PendingJob) -> None:
        """Put a job at the end."""
        self.jobs.append(pending)
        self.waiting_bytes += pending.job.size_bytes

    def popleft(self) -> PendingJob:
        """Take the first job out."""
        pending = self.jobs.popleft()
        self.waiting_bytes -= pending.job.size_bytes
        return pending


class WriteBacklog:
    """The jobs of all tiers, until each tier has its outcome. O(1) a call and tier.

    `is_read_from` says whether a tier has reads to do. Times come in. Not thread-safe.
    """

    def __init__(
        self, tiers: Sequence[int], is_read_from: Callable[[int], bool], options: WriterOptions
    ) -> None:
        if not tiers or len(set(tiers)) != len(tiers):
            raise ConfigError(f"writer tiers {list(tiers)}, allowed: one or more, each once")
        self._options = options
        self._is_read_from = is_read_from
        self._queues = {tier: TierQueue(tier, options.memory_s) for tier in sorted(tiers)}
        self._known = sum(1 << tier for tier in tiers)
        self._outcomes: list[PageWritten] = []
        self._is_closed = False

    def offer(self, job: WriteJob, now_s: float) -> None:
        """Have a page written, some time; StoreError when closed or a tier is unknown."""
        if self._is_closed:
            raise StoreError("the writer is closed; the page stays in the arena only")
        if job.tiers & ~self._known:
            raise StoreError(f"tiers {job.tiers:#b} of a page, allowed: {self._known:#b}")
        queues = [queue for queue in self._queues.values() if job.tiers >> queue.tier & 1]
        pending = PendingJob(job, now_s, len(queues))
        for queue in queues:
            if self._has_room(queue, job):
                queue.append(pending)
            else:
                self._crowd_out(queue, pending)

    def next_write(self, tier: int, now_s: float) -> WriteJob | None:
        """What the tier, which has nothing under way, writes now; None: nothing yet."""
        queue = self._queues[tier]
        assert queue.writing is None
        while queue.jobs:
            pending = queue.jobs[0]
            if self._is_read_from(tier):
                if now_s < pending.offered_s + self._options.defer_s:
                    return None
                if pending.copies:
                    # A copy more is not worth what the reads would wait for it.
                    self._crowd_out(queue, queue.popleft())
                    continue
            queue.writing = queue.popleft()
            queue.writing.copies += 1
            queue.meter.begin(now_s)
            return pending.job
        return None

    def finish(self, tier: int, write: Write, now_s: float) -> None:
        """The tier's write has come back."""
        queue = self._queues[tier]
        pending, queue.writing = queue.writing, None
        assert pending is not None
        end = _ENDS.get(write.outcome, WriteEnd.FAILED)
        if end not in _HELD:
            pending.copies -= 1
        moved_bytes = pending.job.size_bytes if end is WriteEnd.WRITTEN else 0
        queue.meter.end(end, moved_bytes, now_s)
        self._end(queue, pending, end, write.lost)

    def expire(self, now_s: float) -> None:
        """Give up what has waited too long; again at `look_at_s`."""
        for queue in self._queues.values():
            while queue.jobs and self._given_up_s(queue.jobs[0]) <= now_s:
                self._crowd_out(queue, queue.popleft())

    @property
    def look_at_s(self) -> float:
        """When to call `expire` at the latest."""
        firsts = (queue.jobs[0] for queue in self._queues.values() if queue.jobs)
        return min(map(self._given_up_s, firsts), default=math.inf)

    def take_outcomes(self) -> list[PageWritten]:
        """What came about since the last call."""
        taken, self._outcomes = self._outcomes, []
        return taken

    def has_outcomes(self) -> bool:
        """Whether there is something to take."""
        return bool(self._outcomes)

    def has_waiting(self, tier: int) -> bool:
        """Whether the tier has something to write."""
        return bool(self._queues[tier].jobs)

    def report(self, now_s: float) -> tuple[WriteReport, ...]:
        """How each tier fares."""
        return tuple(_report(queue, now_s) for queue in self._queues.values())

    def close(self) -> None:
        """Give up all that waits and take nothing more; writes under way may still come back."""
        self._is_closed = True
        for queue in self._queues.values():
            while queue.jobs:
                self._crowd_out(queue, queue.popleft())

    def _given_up_s(self, pending: PendingJob) -> float:
        return pending.offered_s + self._options.give_up_s

    def _has_room(self, queue: TierQueue, job: WriteJob) -> bool:
        options = self._options
        has_pages = len(queue.jobs) < options.max_pages
        return has_pages and queue.waiting_bytes + job.size_bytes <= options.max_bytes

    def _crowd_out(self, queue: TierQueue, pending: PendingJob) -> None:
        queue.crowded_out += 1
        self._end(queue, pending, WriteEnd.CROWDED_OUT, ())

    def _end(
        self, queue: TierQueue, pending: PendingJob, end: WriteEnd, lost: tuple[bytes, ...]
    ) -> None:
        pending.pending -= 1
        job, is_last = pending.job, pending.pending == 0
        self._outcomes.append(PageWritten(job.key, job.slot, queue.tier, end, lost, is_last))


def _report(queue: TierQueue, now_s: float) -> WriteReport:
    return WriteReport(
        tier=queue.tier,
        bandwidth_bytes_per_s=queue.meter.bandwidth_bytes_per_s(now_s),
        backlog_pages=len(queue.jobs),
        backlog_bytes=queue.waiting_bytes,
        writing_pages=queue.meter.under_way,
        written_bytes=queue.meter.moved_bytes,
        outcomes={**queue.meter.outcomes(), WriteEnd.CROWDED_OUT: queue.crowded_out},
    )
