"""From a page that was published or asked for to the placement policy's view of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bana.radix_global.reader.report import TierReport
from bana.radix_global.writer.jobs import WriteReport
from bana.radix_global.writer.placement import Placement, PlacementView, TierRoom
from bana.radix_global.writer.traffic import Traffic
from bana.slo.clock import Clock

# How long a view of the tiers is good for: policies are asked a thousand times a second.
ROOMS_AGE_S = 0.05


class PolicyPlacer:
    """Asks the policy, with the traffic and the tiers as they are now."""

    def __init__(
        self,
        policy: Placement,
        read_reports: Callable[[], Sequence[TierReport]],
        write_reports: Callable[[], Sequence[WriteReport]],
        clock: Clock,
    ) -> None:
        self._policy = policy
        self._read_reports = read_reports
        self._write_reports = write_reports
        self._clock = clock
        self._traffic = Traffic()
        self._rooms: tuple[TierRoom, ...] = ()
        self._looked_s: float | None = None

    def choose_tiers(self, key: bytes, held: int, reads: int) -> int:
        """See Placer; what the policy may not answer is left out."""
        now_s = self._clock.now_s()
        rooms = self._look(now_s)
        view = PlacementView(key, held, reads, self._traffic.read_share(now_s), rooms)
        known = sum(1 << room.tier for room in rooms)
        return self._policy.choose_tiers(view).tiers & known & ~held

    def note_new(self, size_bytes: int) -> None:
        """See Placer."""
        self._traffic.note_new(size_bytes, self._clock.now_s())

    def note_read(self, size_bytes: int) -> None:
        """See Placer."""
        self._traffic.note_read(size_bytes, self._clock.now_s())

    def _look(self, now_s: float) -> tuple[TierRoom, ...]:
        if self._looked_s is None or now_s - self._looked_s > ROOMS_AGE_S:
            self._looked_s = now_s
            given = {each.tier: each.bandwidth_bytes_per_s for each in self._read_reports()}
            self._rooms = tuple(
                TierRoom(each.tier, given.get(each.tier), each.backlog_bytes)
                for each in self._write_reports()
            )
        return self._rooms
