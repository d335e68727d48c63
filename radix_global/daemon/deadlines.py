"""Which wants end next for want of time."""

from __future__ import annotations

import heapq

from bana.radix_global.daemon.owners import PendingWant

SLACK = 64


class Deadlines:
    """A heap of wants; those removed are swept out once they are the larger part. O(log n)."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, PendingWant]] = []
        self._live: set[PendingWant] = set()
        self._sequence = 0

    def add(self, want: PendingWant, end_s: float) -> None:
        """It ends at `end_s`, unless it is settled already; once a want."""
        if want.outcome is not None:
            return
        self._sequence += 1
        self._live.add(want)
        heapq.heappush(self._heap, (end_s, self._sequence, want))

    def remove(self, want: PendingWant) -> None:
        """It ends otherwise."""
        self._live.discard(want)
        if len(self._heap) > 2 * len(self._live) + SLACK:
            self._heap = [entry for entry in self._heap if entry[2] in self._live]
            heapq.heapify(self._heap)

    def take_passed(self, now_s: float) -> list[PendingWant]:
        """Those that end at or before `now_s`, the earliest first."""
        passed = []
        while self._heap and self._heap[0][0] <= now_s:
            want = heapq.heappop(self._heap)[2]
            if want in self._live:
                self._live.remove(want)
                passed.append(want)
        return passed

    def next_s(self) -> float | None:
        """When the next one ends, None where nothing is watched."""
        while self._heap and self._heap[0][2] not in self._live:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
