"""What engines say of their scheduling, as Prometheus series of the front door.

Numbers are the engines' own and restart with them, as counters may.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from bana.slo.wire import ClassReport, SchedulingReport, Tally

_TALLIES = {
    "ttft": ("bana_engine_ttft_seconds", "Arrival to the first token, by the engine's clock."),
    "tpot": ("bana_engine_tpot_seconds", "Time per output token after the first."),
    "slack": (
        "bana_engine_admission_slack_seconds",
        "What was left of the TTFT limit beyond the predicted service, at admission.",
    ),
}
_COUNTS = {
    "answered": "Requests answered.",
    "met": "Requests that met every limit.",
    "demoted": "Requests set behind the others because they could no longer meet their limit.",
    "yielded": "Times a half-computed prompt gave way to a tighter one.",
    "rejected": "Requests refused as infeasible.",
}


class SchedulingCollector(Collector):
    """Renders the newest report of each instance; `reports` is replaced before each scrape."""

    def __init__(self) -> None:
        self.reports: Mapping[str, SchedulingReport] = {}

    def collect(self) -> Iterator[Metric]:
        """Every series of every engine that schedules by policies."""
        yield self._collect_counts()
        yield self._collect_missed()
        yield from self._collect_classes()
        yield self._collect_tallies("ttft")
        yield self._collect_tallies("tpot")
        yield self._collect_tallies("slack")
        yield from self._collect_gauges()

    def _classes(self) -> Iterator[tuple[str, str, ClassReport]]:
        for instance, report in self.reports.items():
            for name, seen in report.classes.items():
                yield instance, name, seen

    def _collect_counts(self) -> Metric:
        family = CounterMetricFamily(
            "bana_engine_scheduling", "What the policies have done.", labels=("instance", "what")
        )
        for instance, report in self.reports.items():
            for what, count in report.counts.items():
                family.add_metric((instance, what), count)
        return family

    def _collect_classes(self) -> Iterator[Metric]:
        for field, text in _COUNTS.items():
            family = CounterMetricFamily(
                f"bana_engine_{field}", text, labels=("instance", "slo_class")
            )
            for instance, name, seen in self._classes():
                family.add_metric((instance, name), getattr(seen, field))
            yield family

    def _collect_missed(self) -> Metric:
        family = CounterMetricFamily(
            "bana_engine_missed",
            "Limits that were missed.",
            labels=("instance", "slo_class", "limit"),
        )
        for instance, name, seen in self._classes():
            for limit, count in seen.missed.items():
                family.add_metric((instance, name, limit), count)
        return family

    def _collect_tallies(self, field: str) -> Metric:
        metric, text = _TALLIES[field]
        family = HistogramMetricFamily(metric, text, labels=("instance", "slo_class"))
        for instance, name, seen in self._classes():
            tally: Tally = getattr(seen, field)
            family.add_metric((instance, name), list(_buckets(tally)), tally.sum_s)
        return family

    def _collect_gauges(self) -> Iterator[Metric]:
        error = GaugeMetricFamily(
            "bana_engine_step_time_error_ratio",
            "Recent error of predicted step times; bias is signed.",
            labels=("instance", "step", "kind"),
        )
        inflation = GaugeMetricFamily(
            "bana_engine_prefill_inflation",
            "How much longer prompt work takes than alone.",
            labels=("instance",),
        )
        for instance, report in self.reports.items():
            inflation.add_metric((instance,), report.inflation)
            for step, seen in report.errors.items():
                error.add_metric((instance, step, "absolute"), seen.error)
                error.add_metric((instance, step, "bias"), seen.bias)
        yield error
        yield inflation


def _buckets(tally: Tally) -> Iterable[tuple[str, float]]:
    """Cumulative counts by upper bound, as Prometheus wants them."""
    bounds = [*(f"{bound:g}" for bound in tally.bounds_s), "+Inf"]
    return zip(bounds, accumulate(map(float, tally.counts)), strict=True)
