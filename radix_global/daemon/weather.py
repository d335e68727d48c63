"""What reading from the tiers costs, told to everybody in general, and to a want as it is meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bana.radix_global.messages import TierWeather
from bana.radix_global.reader.report import TierReport


class ReadWeather(msgspec.Struct, frozen=True):
    """All tiers at one moment; by place, its share of the bytes that wait to be read, by when they
    are due.
    """

    tiers: tuple[TierWeather, ...] = ()
    due_bytes: Mapping[int, Sequence[tuple[float, int]]] = {}

    def before(self, due_s: float, own: Mapping[int, int]) -> tuple[TierWeather, ...]:
        """The same for pages that are due then: less urgent ones are read after them. `own` bytes,
        by place, are waited for already, and are its own: they are not before it.

        O(requests that wait for pages).
        """
        return tuple(
            msgspec.structs.replace(
                tier,
                backlog_bytes=max(
                    0, self._count_before(tier.place, due_s) - own.get(tier.place, 0)
                ),
            )
            for tier in self.tiers
        )

    def _count_before(self, place: int, due_s: float) -> int:
        return sum(size for due, size in self.due_bytes.get(place, ()) if due <= due_s)


def read_weather(reports: Sequence[TierReport], names: Mapping[int, str]) -> ReadWeather:
    """The weather as the reader reports it, with the names of its tiers."""
    tiers = tuple(
        TierWeather(
            place=report.tier,
            name=names[report.tier],
            bytes_per_s=report.bandwidth_bytes_per_s or 0.0,
            latency_s=report.latency_s or 0.0,
            backlog_pages=report.backlog_pages,
            backlog_bytes=sum(size for _, size in report.backlog_by_due),
        )
        for report in reports
    )
    return ReadWeather(tiers, {report.tier: report.backlog_by_due for report in reports})
