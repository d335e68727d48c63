import re

from bana.eval.report.plot_groups import list_classes, plot_attainment, plot_fairness
from bana.eval.report.records import StoredRun


def test_attainment_of_all_classes_and_quartiles(run_at_8: StoredRun) -> None:
    classes, quartiles = plot_attainment(run_at_8.summary)
    assert classes.svg.count('class="mark circle s0"') == 3
    assert quartiles.svg.count('class="mark circle s0"') == len(run_at_8.summary.quartiles)


def test_every_request_of_a_group_is_in_one_outcome(run_at_8: StoredRun) -> None:
    outcomes = plot_fairness(run_at_8)[0]
    assert outcomes.table is not None
    groups = (*list_classes(run_at_8.summary), *run_at_8.summary.quartiles)
    for row, group in zip(outcomes.table.rows, groups, strict=True):
        counts = [int(cell.replace(",", "")) for cell in row[1:]]
        assert sum(counts) == group.offered, row[0]
        assert counts[0] == group.met


def test_bars_fill_the_row(run_at_8: StoredRun) -> None:
    svg = plot_fairness(run_at_8)[0].svg
    boxes = re.findall(r'<rect class="area [^"]+" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"', svg)
    by_row: dict[str, float] = {}
    for _, y, width in boxes:
        by_row[y] = by_row.get(y, 0.0) + float(width)
    assert len(by_row) == 3 + len(run_at_8.summary.quartiles)
    widths = list(by_row.values())
    assert max(widths) - min(widths) < 1.0
