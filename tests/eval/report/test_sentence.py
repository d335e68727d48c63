import msgspec

from bana.eval.report.records import ReportInput, StoredRun
from bana.eval.report.sentence import choose_sentence, tabulate_comparisons
from bana.eval.summary import Comparison, MaxRate, Spread, Verdict

COMPARED = Comparison("goodput", Spread(1.12, 1.05, 1.18), 5, Verdict.BETTER)


def test_a_run_speaks_for_itself(run_at_8: StoredRun) -> None:
    assert choose_sentence(ReportInput((run_at_8,))) == run_at_8.summary.sentence


def test_the_reports_own_sentence_goes_first(grid: ReportInput) -> None:
    assert choose_sentence(msgspec.structs.replace(grid, sentence="Mine.")) == "Mine."


def test_a_grid_says_its_max_rate(grid: ReportInput) -> None:
    sentence = choose_sentence(grid)
    assert "5.7/s" in sentence
    assert "90 %" in sentence
    assert "81 % at 6/s" in sentence


def test_both_sides_are_named(grid: ReportInput) -> None:
    rates = {"bana": MaxRate(7.0, 0.9, (), "r1"), "stock": MaxRate(None, 0.9, (), "r2")}
    sentence = choose_sentence(msgspec.structs.replace(grid, max_rates=rates))
    assert sentence.startswith("bana: Max rate 7/s")
    assert "stock: No max rate" in sentence


def test_comparisons_say_ratio_interval_and_verdict(grid: ReportInput) -> None:
    sentence = choose_sentence(ReportInput(grid.runs, comparisons=(COMPARED,)))
    assert sentence == "B over A: goodput 1.12 (1.05–1.18), better."
    named = ReportInput(grid.runs, comparisons=(COMPARED,), sides=("stock", "bana"))
    assert choose_sentence(named).startswith("bana over stock: goodput 1.12")
    (row,) = tabulate_comparisons([COMPARED], "B over A").rows
    assert row == ("goodput", "1.12", "1.05–1.18", "5", "better")


def test_runs_without_an_answer_say_so(grid: ReportInput) -> None:
    assert choose_sentence(ReportInput(grid.runs)).startswith("5 runs; neither")
