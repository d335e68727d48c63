import msgspec

from bana.eval.report.records import Origin, StoredRun
from bana.eval.report.words import (
    MAX_FACTS,
    describe_endings,
    tabulate_attainment,
    tabulate_latencies,
    tabulate_run,
    tabulate_settings,
    tabulate_workload,
)
from bana.eval.requests import Ending

replace = msgspec.structs.replace


def test_limits_that_nobody_has_are_no_columns(run_at_8: StoredRun) -> None:
    overall = replace(run_at_8.summary.overall, missed={})
    table = tabulate_attainment(
        replace(run_at_8.summary, overall=overall, classes=(), quartiles=())
    )
    assert table.header == ("group", "offered", "met", "attainment", "goodput")


def test_one_class_is_not_listed_beside_all(run_at_8: StoredRun) -> None:
    summary = run_at_8.summary
    both = tabulate_attainment(summary)
    one = tabulate_attainment(replace(summary, classes=summary.classes[:1]))
    assert len(both.rows) - len(one.rows) == 2


def test_latencies_that_nobody_has_are_no_rows(run_at_8: StoredRun) -> None:
    summary = run_at_8.summary
    latencies = replace(summary.overall.latencies, itl_s=None)
    fewer = replace(summary, overall=replace(summary.overall, latencies=latencies))
    assert {row[0] for row in tabulate_latencies(summary).rows} - {
        row[0] for row in tabulate_latencies(fewer).rows
    } == {"ITL"}


def test_the_balance_is_told_where_the_server_told(run_at_8: StoredRun) -> None:
    told = dict(tabulate_run(run_at_8.summary).rows)
    assert told["instances"] == "2"
    assert "instances" not in dict(tabulate_run(replace(run_at_8.summary, balance=None)).rows)


def test_endings_that_happened_are_named() -> None:
    assert describe_endings({Ending.FINISHED: 1200, Ending.CUT: 0}) == "1,200 finished"
    assert describe_endings({}) == "–"


def test_settings_and_workload_are_readable_and_bounded(run_at_8: StoredRun) -> None:
    settings = {f"s{i}": i for i in range(200)}
    table = tabulate_settings(run_at_8.summary, Origin(settings=settings))
    assert len(table.rows) == MAX_FACTS
    assert "more are in summary.json" in table.note
    rows = dict(tabulate_workload(run_at_8.summary).rows)
    assert rows["classes"] == "chat 0.7, batch 0.3"
    shown = dict(tabulate_settings(run_at_8.summary, run_at_8.origin).rows)
    assert shown["max_concurrency"] == "–"
    assert shown["started"] == "2026-03-14 09:26:53+00:00"
