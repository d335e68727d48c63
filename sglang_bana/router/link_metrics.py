"""What engines say of their store, as Prometheus series of the front door.

Numbers are the engines' own and restart with them, as counters may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bana.slo.wire import LinkReport

_COUNTERS: dict[str, tuple[str, str, Callable[[LinkReport], Mapping[str, int]]]] = {
    "bana_engine_prompt_tokens": (
        "Prompt tokens by where they came from; each has one source.",
        "source",
        lambda report: report.tokens,
    ),
    "bana_engine_restored_pages": (
        "Pages that needed no computing, by the place they came from.",
        "place",
        lambda report: report.restored_pages,
    ),
    "bana_engine_store": (
        "What became of pages and of the requests that wanted them.",
        "what",
        lambda report: report.counts,
    ),
    "bana_engine_store_client": (
        "What the engine's connection to the store has seen.",
        "what",
        lambda report: report.client,
    ),
}
ATTACHED, REFUSED = "attached", "refused"


class LinkCollector(Collector):
    """Renders the newest report of each instance; `reports` is replaced before each scrape."""

    def __init__(self) -> None:
        self.reports: Mapping[str, LinkReport] = {}

    def collect(self) -> Iterator[Metric]:
        """Every series of every engine that has a store."""
        for name, (text, label, read) in _COUNTERS.items():
            family = CounterMetricFamily(name, text, labels=("instance", label))
            for instance, report in self.reports.items():
                for what, count in read(report).items():
                    family.add_metric((instance, what), count)
            yield family
        yield self._collect_gauges()

    def _collect_gauges(self) -> Metric:
        family = GaugeMetricFamily(
            "bana_engine_store_now", "An engine and its store.", labels=("instance", "quantity")
        )
        for instance, report in self.reports.items():
            gauges = {
                "attached": float(report.state == ATTACHED),
                "refused": float(report.state == REFUSED),
                "resting": float(report.is_resting),
                "held_requests": report.held,
                "wanting_requests": report.wants,
            }
            for quantity, value in gauges.items():
                family.add_metric((instance, quantity), value)
        return family
