import msgspec

from bana.eval.report.plot_latency import plot_latencies, split_series
from bana.eval.report.records import StoredRun
from bana.eval.requests import Limits

replace = msgspec.structs.replace


def test_each_quantity_has_a_plot(run_at_8: StoredRun) -> None:
    plots = plot_latencies(run_at_8)
    assert [p.title.partition(",")[0] for p in plots] == ["TTFT", "TPOT", "ITL", "E2E"]
    ttft, tpot = plots[:2]
    assert ttft.svg.count('class="line s0"') == 1
    assert ttft.svg.count('class="line s0 sent"') == 1
    assert tpot.svg.count("sent") == 0


def test_marks_are_where_the_tables_say(run_at_8: StoredRun) -> None:
    chat = next(g for g in run_at_8.summary.classes if g.name == "chat")
    assert chat.latencies.tpot_s is not None
    assert f"chat, p99: {chat.latencies.tpot_s.p99 * 1e3:.1f} ms" in plot_latencies(run_at_8)[1].svg


def test_a_limit_that_differs_within_a_class_is_not_drawn(run_at_8: StoredRun) -> None:
    run = run_at_8.record.run
    mixed = tuple(replace(o, limits=Limits(ttft_s=0.5 + o.index % 2 * 0.1)) for o in run.observed)
    record = replace(run_at_8.record, run=replace(run, observed=mixed))
    plots = plot_latencies(replace(run_at_8, record=record))
    assert not any("limit" in p.svg for p in plots)


def test_more_classes_than_colours_are_one_series(run_at_8: StoredRun) -> None:
    observed = run_at_8.record.run.observed
    assert [s.name for s in split_series(observed)] == ["batch", "chat"]
    many = [replace(o, slo_class=f"c{o.index % 9}") for o in observed]
    (series,) = split_series(many)
    assert len(series.requests) == len(observed)
