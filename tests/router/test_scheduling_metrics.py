"""The series of engines' own scheduling, as a scrape sees them."""

from __future__ import annotations

import math

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bana.slo.wire import ClassReport, SchedulingReport, StepErrorReport, Tally
from sglang_bana.router.scheduling_metrics import SchedulingCollector

TALLY = Tally((0.1, 1.0), (3, 4, 5), 21.5)
REPORT = SchedulingReport(
    order="budget",
    governor="tpot",
    admission="accept",
    counts={"yields": 7, "faults": 0},
    classes={"standard": ClassReport(12, 9, {"ttft": 3}, 2, 1, 4, TALLY, TALLY, TALLY)},
    errors={"prefill": StepErrorReport(100, 0.08, -0.03)},
    inflation=1.5,
    started=2,
)


def scrape(reports: dict[str, SchedulingReport]) -> dict[tuple[str, tuple[str, ...]], float]:
    registry, collector = CollectorRegistry(), SchedulingCollector()
    registry.register(collector)
    collector.reports = reports
    text = generate_latest(registry).decode()
    # Labels are read in the order of their names.
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_number_of_a_report_is_a_series() -> None:
    seen = scrape({"i0": REPORT})
    assert seen["bana_engine_scheduling_total", ("i0", "yields")] == 7
    assert seen["bana_engine_answered_total", ("i0", "standard")] == 12
    assert seen["bana_engine_met_total", ("i0", "standard")] == 9
    assert seen["bana_engine_missed_total", ("i0", "ttft", "standard")] == 3
    assert seen["bana_engine_demoted_total", ("i0", "standard")] == 2
    assert seen["bana_engine_yielded_total", ("i0", "standard")] == 1
    assert seen["bana_engine_rejected_total", ("i0", "standard")] == 4
    assert seen["bana_engine_step_time_error_ratio", ("i0", "bias", "prefill")] == -0.03
    assert seen["bana_engine_prefill_inflation", ("i0",)] == 1.5


def test_histograms_are_cumulative_and_whole() -> None:
    seen = scrape({"i0": REPORT})
    for metric in ("ttft", "tpot", "admission_slack"):
        name = f"bana_engine_{metric}_seconds"
        buckets = {
            float(labels[1]): value
            for (series, labels), value in seen.items()
            if series == f"{name}_bucket"
        }
        assert buckets == {0.1: 3, 1.0: 7, math.inf: 12}
        assert seen[f"{name}_sum", ("i0", "standard")] == 21.5
        assert seen[f"{name}_count", ("i0", "standard")] == 12


def test_instances_stand_side_by_side_and_absent_ones_are_absent() -> None:
    seen = scrape({"i0": REPORT, "i1": REPORT})
    assert {labels[0] for _, labels in seen if labels} == {"i0", "i1"}
    assert scrape({}) == {}
