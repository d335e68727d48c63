"""What the store's daemon says of itself, as Prometheus series of the front door.

Numbers are the daemon's own and restart with it, as counters may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bana.radix_global.admin_messages import PlaceStatus, StoreReport
from sglang_bana.status import StoreStatus

_PLACE_GAUGES: dict[str, tuple[str, Callable[[PlaceStatus], float]]] = {
    "pages": ("Pages that the index knows in a place.", lambda place: place.pages),
    "held_bytes": ("Bytes that a place holds.", lambda place: place.held_bytes),
    "capacity_bytes": ("Bytes that a place may hold.", lambda place: place.capacity_bytes),
    "read_bytes_per_second": (
        "Verified bytes a second that a tier gives while busy.",
        lambda place: place.bytes_per_s,
    ),
    "read_latency_seconds": ("How long one page takes.", lambda place: place.latency_s),
    "read_backlog_bytes": ("Bytes that wait to be read.", lambda place: place.backlog_bytes),
}
# What counts up, among what places count; the others are sizes of the moment.
_MOMENTARY = ("_slots", "being_read", "being_written", "backlog_bytes", "overdue_reads")


class StoreCollector(Collector):
    """Renders the newest report; `store` is replaced before each scrape, None without one."""

    def __init__(self) -> None:
        self.store: StoreStatus | None = None

    def collect(self) -> Iterator[Metric]:
        """Every series of the store; none without one."""
        if self.store is None:
            return
        report = self.store.report
        yield self._collect_gauges(report)
        yield self._collect_counts(report)
        yield from self._collect_places(report)

    def _collect_gauges(self, report: StoreReport) -> Metric:
        assert self.store is not None
        family = GaugeMetricFamily("bana_store", "The store's daemon.", labels=("quantity",))
        gauges = {
            "silent_seconds": self.store.silent_s,
            "uptime_seconds": report.uptime_s,
            "longest_turn_seconds": report.longest_turn_s,
            "recovering": float(report.is_recovering),
            "slots": report.slots,
            "free_slots": report.free_slots,
            "pinned_pages": report.pinned_pages,
            "waiting_pins": report.waiting_pins,
            "clients": len(report.owners),
            "refused_clients": len(report.refused),
            "leased_pages": sum(owner.leased_pages for owner in report.owners),
            "reserved_slots": sum(owner.reserved_slots for owner in report.owners),
        }
        for name, value in gauges.items():
            family.add_metric((name,), value)
        return family

    def _collect_counts(self, report: StoreReport) -> Metric:
        family = CounterMetricFamily(
            "bana_store_events", "What happened in the store, by what it was.", labels=("event",)
        )
        for name, value in sorted(report.counts.items()):
            family.add_metric((name,), value)
        return family

    def _collect_places(self, report: StoreReport) -> Iterator[Metric]:
        for name, (text, read) in _PLACE_GAUGES.items():
            family = GaugeMetricFamily(f"bana_store_place_{name}", text, labels=("place",))
            for place in report.places:
                family.add_metric((place.name,), read(place))
            yield family
        sizes = GaugeMetricFamily(
            "bana_store_place_size", "What a place has at the moment.", labels=("place", "what")
        )
        events = CounterMetricFamily(
            "bana_store_place_events", "What happened in a place.", labels=("place", "event")
        )
        for place in report.places:
            for name, value in sorted(place.counts.items()):
                (sizes if name.endswith(_MOMENTARY) else events).add_metric(
                    (place.name, name), value
                )
        yield sizes
        yield events
