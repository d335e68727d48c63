"""The series of engines' stores, as a scrape sees them."""

from __future__ import annotations

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bana.slo.wire import LinkReport
from sglang_bana.router.link_metrics import LinkCollector

REPORT = LinkReport(
    state="attached",
    reason="",
    is_resting=False,
    held=2,
    wants=3,
    counts={"late_holds": 4, "recomputed": 5},
    client={"published_pages": 6},
    restored_pages={"arena": 7, "tier_2": 8},
    tokens={"device": 16, "computed": 32, "arena": 112},
)


def scrape(reports: dict[str, LinkReport]) -> dict[tuple[str, tuple[str, ...]], float]:
    registry, collector = CollectorRegistry(), LinkCollector()
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
    assert scrape({"i0": REPORT}) == {
        ("bana_engine_prompt_tokens_total", ("i0", "device")): 16,
        ("bana_engine_prompt_tokens_total", ("i0", "computed")): 32,
        ("bana_engine_prompt_tokens_total", ("i0", "arena")): 112,
        ("bana_engine_restored_pages_total", ("i0", "arena")): 7,
        ("bana_engine_restored_pages_total", ("i0", "tier_2")): 8,
        ("bana_engine_store_total", ("i0", "late_holds")): 4,
        ("bana_engine_store_total", ("i0", "recomputed")): 5,
        ("bana_engine_store_client_total", ("i0", "published_pages")): 6,
        ("bana_engine_store_now", ("i0", "attached")): 1,
        ("bana_engine_store_now", ("i0", "refused")): 0,
        ("bana_engine_store_now", ("i0", "resting")): 0,
        ("bana_engine_store_now", ("i0", "held_requests")): 2,
        ("bana_engine_store_now", ("i0", "wanting_requests")): 3,
    }


def test_an_engine_that_its_store_refuses_is_seen() -> None:
    series = scrape({"i0": msgspec.structs.replace(REPORT, state="refused", reason="too large")})
    assert series["bana_engine_store_now", ("i0", "refused")] == 1
    assert series["bana_engine_store_now", ("i0", "attached")] == 0


def test_engines_without_a_store_have_no_series() -> None:
    assert scrape({}) == {}
