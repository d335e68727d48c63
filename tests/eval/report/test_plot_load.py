import msgspec

from bana.eval.report.naming import name_run
from bana.eval.report.plot_load import MAX_RUN_ROWS, list_sides, plot_load, tabulate_runs
from bana.eval.report.records import Origin, ReportInput, StoredRun
from bana.eval.requests import Validity
from bana.eval.summary import LoadPoint, MaxRate

replace = msgspec.structs.replace


def test_points_have_intervals_and_a_line(grid: ReportInput) -> None:
    attainment = plot_load(grid)[0]
    assert attainment.svg.count('class="mark circle s0"') == len(grid.runs)
    assert attainment.svg.count('class="line s0"') == 1
    assert attainment.svg.count('class="rule muted"') == 1
    assert attainment.svg.count('class="rule s0"') == 1


def test_points_of_a_search_without_a_run_are_drawn_too(grid: ReportInput) -> None:
    rate = grid.max_rates[""]
    more = replace(rate, points=(*rate.points, LoadPoint(5.0, 0.93, None, is_valid=False)))
    plots = plot_load(replace(grid, max_rates={"": more}))
    assert plots[0].svg.count("mark cross") == 1
    assert plots[0].svg.count('class="mark circle s0"') == len(grid.runs)


def test_a_run_that_is_not_valid_is_crossed_and_not_joined(grid: ReportInput) -> None:
    first = grid.runs[0]
    spoilt = replace(first, summary=replace(first.summary, validity=Validity(False, ("late",))))
    plot = plot_load(ReportInput((spoilt, *grid.runs[1:])))[0]
    assert plot.svg.count("mark cross s0") == 1
    path = plot.svg.partition('class="line s0"')[2].partition(' d="')[2].partition('"')[0]
    assert path.count("L") == len(grid.runs) - 2


def test_fairness_is_drawn_against_load_for_one_system(grid: ReportInput) -> None:
    titles = [plot.title for plot in plot_load(grid)]
    assert titles[-2:] == ["Attainment by class", "Attainment by quartile of prompt length"]


def test_sides_are_named_and_bounded(grid: ReportInput) -> None:
    run = grid.runs[0]
    runs = tuple(replace(run, origin=Origin(side=f"side {i}")) for i in range(9))
    sides = list_sides(ReportInput(runs, {"side 1": MaxRate(None, 0.9, (), "r")}))
    assert [s.name for s in sides] == ["side 0", "side 1", "side 2", "side 3"]
    assert sides[1].max_rate is not None
    assert len(plot_load(ReportInput(runs))) == 3


def test_runs_are_named_by_label_side_and_rate(run_at_8: StoredRun) -> None:
    assert name_run(run_at_8).endswith("/s")
    assert name_run(replace(run_at_8, origin=Origin(label="2", side="bana"))) == "bana 2"


def test_runs_are_listed_by_rate_and_bounded(grid: ReportInput) -> None:
    table = tabulate_runs(tuple(reversed(grid.runs)))
    rates = [float(row[1].removesuffix("/s")) for row in table.rows]
    assert rates == sorted(rates)
    many = tabulate_runs(grid.runs * 20)
    assert len(many.rows) == MAX_RUN_ROWS
    assert many.note == f"{100 - MAX_RUN_ROWS} more runs are not listed."
