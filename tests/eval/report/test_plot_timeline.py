import msgspec

from bana.eval.report.plot_timeline import MAX_TABLE_ROWS, plot_timeline
from bana.eval.report.records import StoredRun
from bana.eval.requests import Ending

replace = msgspec.structs.replace


def test_four_strips_where_the_server_told(run_at_8: StoredRun) -> None:
    titles = [p.title for p in plot_timeline(run_at_8)]
    assert titles == [
        "Requests per second",
        "Missed, by when they were due",
        "TTFT, by when requests were due",
        "Running and waiting, as the server told",
    ]


def test_three_where_it_did_not(run_at_8: StoredRun) -> None:
    run = replace(run_at_8.record.run, samples=())
    stored = replace(run_at_8, record=replace(run_at_8.record, run=run))
    assert len(plot_timeline(stored)) == 3


def test_what_is_not_counted_is_shaded(run_at_8: StoredRun) -> None:
    assert plot_timeline(run_at_8)[0].svg.count('class="outside"') == 2


def test_a_probe_without_an_answer_is_crossed(run_at_8: StoredRun) -> None:
    svg = plot_timeline(run_at_8)[2].svg
    assert svg.count("mark cross") == 1
    assert "probe at 61 s: no answer" in svg


def test_the_table_adds_up_and_is_bounded(run_at_8: StoredRun) -> None:
    table = plot_timeline(run_at_8)[0].table
    assert table is not None
    assert len(table.rows) <= MAX_TABLE_ROWS
    observed = run_at_8.record.run.observed
    assert sum(int(row[1]) for row in table.rows) == len(observed)
    assert sum(int(row[2]) for row in table.rows) == sum(
        o.ending is Ending.FINISHED for o in observed
    )
