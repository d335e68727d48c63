"""The one sentence that a report begins and ends with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bana.eval.report.numbers import format_figure, format_interval
from bana.eval.report.records import NumberTable, ReportInput
from bana.eval.report.text import clean_text
from bana.eval.sentence import compose_capacity
from bana.eval.summary import Comparison, MaxRate

MAX_COMPARISONS = 3


def choose_sentence(report: ReportInput) -> str:
    """The report's own sentence, else the run's, else what max rates and comparisons say."""
    if report.sentence:
        return report.sentence
    if len(report.runs) == 1 and not report.max_rates and not report.comparisons:
        return report.runs[0].summary.sentence
    parts = [*_say_comparisons(report), *_say_rates(report.max_rates)]
    return " ".join(parts) or f"{len(report.runs)} runs; neither a max rate nor a comparison."


def _say_rates(max_rates: Mapping[str, MaxRate]) -> list[str]:
    return [
        f"{clean_text(name, 40)}: {compose_capacity(rate)}" if name else compose_capacity(rate)
        for name, rate in sorted(max_rates.items())
    ]


def _say_comparisons(report: ReportInput) -> list[str]:
    if not report.comparisons:
        return []
    said = "; ".join(map(_say_comparison, report.comparisons[:MAX_COMPARISONS]))
    return [f"{name_ratio(report)}: {said}."]


def _say_comparison(comparison: Comparison) -> str:
    bounds = format_interval(comparison.ratio, format_figure)
    metric, verdict = clean_text(comparison.metric, 40), comparison.verdict.value
    return f"{metric} {format_figure(comparison.ratio.value)} ({bounds}), {verdict}"


def name_ratio(report: ReportInput) -> str:
    """What the ratios of a comparison are of."""
    if len(report.sides) != 2:
        return "B over A"
    a, b = (clean_text(side, 24) for side in report.sides)
    return f"{b} over {a}"


def tabulate_comparisons(comparisons: Sequence[Comparison], ratio: str) -> NumberTable:
    """One row a metric: the median ratio of the pairs, its interval, the verdict."""
    rows = (
        (
            clean_text(c.metric, 60),
            format_figure(c.ratio.value),
            format_interval(c.ratio, format_figure),
            str(c.pairs),
            c.verdict.value,
        )
        for c in comparisons
    )
    header = ("metric", ratio, "95 % interval", "pairs", "verdict")
    return NumberTable("Comparison", header, tuple(rows))
