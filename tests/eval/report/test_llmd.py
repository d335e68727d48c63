"""The field names are those of the schema of Benchmark Report 0.2.1, written down as facts."""

import datetime
import json
from collections.abc import Iterator

import msgspec
import pytest

from bana.eval.report.llmd import describe_llmd
from bana.eval.report.records import Origin, StoredRun
from bana.eval.requests import Ending

replace = msgspec.structs.replace

STATISTICS = {
    "units", "mean", "mode", "stddev", "min", "p0p1", "p1", "p5", "p10", "p25", "p50", "p75",
    "p90", "p95", "p99", "p99p9", "max",
}  # fmt: skip
POINT = (STATISTICS - {"units"}) | {"ts", "value"}
LENGTH = {"distribution", "value", "std_dev", "min", "max"}
LATENCIES = {
    "time_to_first_token", "normalized_time_per_output_token", "time_per_output_token",
    "inter_token_latency", "request_latency",
}  # fmt: skip
RATES = {
    "input_token_rate", "output_token_rate", "total_token_rate", "request_rate", "image_rate",
    "video_rate", "audio_rate",
}  # fmt: skip
# Where in the report which fields may stand; `*` is any name or any element of a list.
ALLOWED = {
    "": {"version", "run", "scenario", "results"},
    "run": {"uid", "eid", "cid", "pid", "time", "user", "description", "keywords"},
    "run.time": {"start", "end", "duration"},
    "scenario": {"stack", "load"},
    "scenario.stack.*": {"metadata", "standardized", "native"},
    "scenario.stack.*.metadata": {"schema_version", "label", "cfg_id", "description"},
    "scenario.stack.*.native": {"args", "envars", "config"},
    "scenario.load": {"metadata", "standardized", "native"},
    "scenario.load.metadata": {
        "schema_version", "cfg_id", "description", "treatment", "treatment_group",
        "concurrent_with",
    },
    "scenario.load.standardized": {
        "tool", "tool_version", "parallelism", "source", "stage", "input_seq_len",
        "output_seq_len", "prefix", "multi_turn", "rate_qps", "concurrency",
    },
    "scenario.load.standardized.input_seq_len": LENGTH,
    "scenario.load.standardized.output_seq_len": LENGTH,
    "scenario.load.standardized.multi_turn": {"enabled", "max_turns"},
    "scenario.load.native": {"args", "envars", "config"},
    "results": {
        "request_performance", "session_performance", "observability", "profiling",
        "component_health",
    },
    "results.request_performance": {"aggregate", "time_series"},
    "results.request_performance.aggregate": {"requests", "latency", "throughput"},
    "results.request_performance.aggregate.requests": {
        "total", "failures", "incomplete", "input_length", "output_length", "request_size",
        "multimodal",
    },
    "results.request_performance.aggregate.requests.input_length": STATISTICS,
    "results.request_performance.aggregate.requests.output_length": STATISTICS,
    "results.request_performance.aggregate.latency": LATENCIES,
    "results.request_performance.aggregate.latency.*": STATISTICS,
    "results.request_performance.aggregate.throughput": RATES,
    "results.request_performance.aggregate.throughput.*": STATISTICS,
    "results.request_performance.time_series": {"latency", "throughput"},
    "results.request_performance.time_series.latency": LATENCIES,
    "results.request_performance.time_series.latency.*": {"units", "series"},
    "results.request_performance.time_series.latency.*.series.*": POINT,
    "results.observability.drop_rate": STATISTICS,
    "results.observability.components.*": {
        "component_label", "replica_id", "aggregate", "time_series", "raw_data_path", "graph_path",
    },
    "results.observability.components.*.aggregate.*": STATISTICS,
    "results.observability.components.*.time_series": {
        "num_requests_running", "num_requests_waiting"
    },
    "results.observability.components.*.time_series.*": {"units", "series"},
    "results.observability.components.*.time_series.*.series.*": POINT,
}  # fmt: skip
# What the schema leaves open.
OPEN = (
    "scenario.stack.*.standardized",
    "scenario.load.native.config",
    "results.observability.bana",
)
REQUIRED = {
    "": {"version", "run", "results"},
    "run": {"uid"},
    "scenario.stack.*": {"metadata", "standardized", "native"},
    "scenario.stack.*.metadata": {"label", "cfg_id"},
    "scenario.stack.*.standardized": {"kind", "tool", "tool_version"},
    "scenario.load": {"metadata", "standardized", "native"},
    "scenario.load.standardized": {"tool", "tool_version", "source", "input_seq_len"},
    "scenario.load.standardized.input_seq_len": {"distribution", "value"},
    "scenario.load.standardized.output_seq_len": {"distribution", "value"},
    "results.request_performance.aggregate.requests": {"total"},
    "results.request_performance.aggregate.latency.*": {"units", "mean"},
    "results.request_performance.aggregate.throughput.*": {"units", "mean"},
    "results.request_performance.time_series.latency.*.series.*": {"ts"},
    "results.observability.components.*": {"component_label"},
}


def walk(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict]]:
    """Every object of the report with the way to it."""
    if isinstance(value, dict):
        yield path, value
        for name, inner in value.items():
            yield from walk(inner, (*path, name))
    if isinstance(value, list):
        for inner in value:
            yield from walk(inner, (*path, "*"))


def matches(rule: str, path: tuple[str, ...]) -> bool:
    parts = tuple(rule.split(".")) if rule else ()
    return len(parts) == len(path) and all(
        want in ("*", have) for want, have in zip(parts, path, strict=True)
    )


def export(stored: StoredRun) -> dict:
    return json.loads(msgspec.json.encode(describe_llmd(stored)))


@pytest.fixture(scope="module")
def report(run_at_8: StoredRun) -> dict:
    return export(run_at_8)


def test_every_field_is_one_of_the_schema(report: dict) -> None:
    checked = 0
    for path, fields in walk(report):
        if any(matches(rule, path[: len(rule.split("."))]) for rule in OPEN):
            continue
        rules = [names for rule, names in ALLOWED.items() if matches(rule, path)]
        for names in rules:
            assert set(fields) <= names, ".".join(path)
        checked += bool(rules)
        assert None not in fields.values(), ".".join(path)
    assert checked > 100


def test_every_required_field_is_there(report: dict) -> None:
    found = list(walk(report))
    for rule, names in REQUIRED.items():
        places = [fields for path, fields in found if matches(rule, path)]
        assert places, rule
        for fields in places:
            assert names <= set(fields), rule


def test_units_are_those_of_the_quantity(report: dict) -> None:
    aggregate = report["results"]["request_performance"]["aggregate"]
    assert {name: stats["units"] for name, stats in aggregate["latency"].items()} == {
        "time_to_first_token": "s",
        "time_per_output_token": "s/token",
        "inter_token_latency": "s/token",
        "normalized_time_per_output_token": "s/token",
        "request_latency": "s",
    }
    assert {name: stats["units"] for name, stats in aggregate["throughput"].items()} == {
        "input_token_rate": "tokens/s",
        "output_token_rate": "tokens/s",
        "total_token_rate": "tokens/s",
        "request_rate": "queries/s",
    }
    assert aggregate["requests"]["input_length"]["units"] == "count"
    assert report["results"]["observability"]["drop_rate"]["units"] == "fraction"


def test_figures_are_those_of_the_summary(report: dict, run_at_8: StoredRun) -> None:
    summary = run_at_8.summary
    aggregate = report["results"]["request_performance"]["aggregate"]
    ttft = summary.overall.latencies.ttft_s
    assert ttft is not None
    assert aggregate["latency"]["time_to_first_token"]["p99"] == ttft.p99
    assert aggregate["latency"]["time_to_first_token"]["max"] == ttft.largest
    endings = summary.overall.endings
    assert aggregate["requests"]["total"] == summary.overall.offered
    assert aggregate["requests"]["failures"] == endings[Ending.REJECTED] + endings[Ending.CUT]
    assert aggregate["requests"]["failures"] > 0
    rates = aggregate["throughput"]
    total = rates["input_token_rate"]["mean"] + rates["output_token_rate"]["mean"]
    assert rates["total_token_rate"]["mean"] == pytest.approx(total)
    own = report["results"]["observability"]["bana"]
    assert own["attainment"]["value"] == summary.overall.attainment.value


def test_the_load_is_described(report: dict, run_at_8: StoredRun) -> None:
    load = report["scenario"]["load"]["standardized"]
    assert load["tool"] == "bana"
    assert load["source"] == "random"
    assert load["rate_qps"] == run_at_8.summary.offered_rps
    lengths = [o.prompt_tokens for o in run_at_8.record.run.observed if o.phase == "window"]
    assert (load["input_seq_len"]["min"], load["input_seq_len"]["max"]) == (
        min(lengths), max(lengths)
    )  # fmt: skip


def test_times_are_iso_8601(report: dict) -> None:
    time = report["run"]["time"]
    start, end = (datetime.datetime.fromisoformat(time[name]) for name in ("start", "end"))
    assert start.tzinfo is not None
    assert time["duration"].startswith("PT")
    assert time["duration"].endswith("S")
    assert float(time["duration"][2:-1]) == pytest.approx((end - start).total_seconds(), abs=1e-5)


def test_without_a_start_nothing_is_dated(run_at_8: StoredRun) -> None:
    report = export(replace(run_at_8, origin=Origin()))
    assert set(report["run"]["time"]) == {"duration"}
    assert "time_series" not in report["results"]["request_performance"]
    components = report["results"]["observability"]["components"]
    assert all("time_series" not in component for component in components)


def test_components_are_those_of_the_stack(report: dict) -> None:
    labels = [component["metadata"]["label"] for component in report["scenario"]["stack"]]
    told = [c["component_label"] for c in report["results"]["observability"]["components"]]
    assert labels == told == ["instance-0", "instance-1"]


def test_the_same_run_has_the_same_identity(report: dict, run_at_8: StoredRun, make_run) -> None:
    assert export(run_at_8)["run"]["uid"] == report["run"]["uid"]
    other = make_run(rate_rps=2.0, window_s=10.0, tokens=8)
    assert export(other)["run"]["uid"] != report["run"]["uid"]


def test_a_run_without_anything_is_still_a_report(run_at_8: StoredRun) -> None:
    run = replace(run_at_8.record.run, observed=(), samples=(), probes=())
    report = export(replace(run_at_8, record=replace(run_at_8.record, run=run)))
    assert report["scenario"] == {}
    assert "components" not in report["results"]["observability"]
