"""A run in a terminal: two tables and, as the last line, the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from bana.eval.report.plot_load import tabulate_runs
from bana.eval.report.records import NumberTable, ReportInput, StoredRun
from bana.eval.report.sentence import choose_sentence, name_ratio, tabulate_comparisons
from bana.eval.report.text import clean_text, redact_url
from bana.eval.report.words import tabulate_attainment, tabulate_latencies, tabulate_run
from bana.eval.summary import Summary

if TYPE_CHECKING:
    from rich.console import Console

MAX_SENTENCE = 600
GAP = "  "


def print_run(stored: StoredRun, stream: TextIO) -> None:
    """The figures of one run, its sentence last.

    Boxes on a terminal; plain aligned lines elsewhere, on a dumb one and under NO_COLOR.
    """
    summary = stored.summary
    console = _open_console(stream)
    _print_lines(console, _list_warnings(summary))
    _print_lines(console, [f"target {clean_text(redact_url(summary.target))}, seed {summary.seed}"])
    for table in (tabulate_attainment(summary), tabulate_latencies(summary), tabulate_run(summary)):
        _print_table(console, table)
    _print_lines(console, ["", clean_text(summary.sentence, MAX_SENTENCE)])


def print_report(report: ReportInput, stream: TextIO) -> None:
    """A row for each run, comparisons where there are any, the sentence last."""
    console = _open_console(stream)
    tables = [
        tabulate_runs(report.runs),
        tabulate_comparisons(report.comparisons, name_ratio(report)),
    ]
    for table in tables:
        if table.rows:
            _print_table(console, table)
    _print_lines(console, ["", clean_text(choose_sentence(report), MAX_SENTENCE)])


def print_tables(tables: Sequence[NumberTable], sentence: str, stream: TextIO) -> None:
    """Any tables, as runs are printed, and the sentence last."""
    console = _open_console(stream)
    for table in tables:
        _print_table(console, table)
    _print_lines(console, ["", clean_text(sentence, MAX_SENTENCE)])


def _open_console(stream: TextIO) -> Console:
    from rich.console import Console

    return Console(file=stream, highlight=False, markup=False, emoji=False)


def _list_warnings(summary: Summary) -> list[str]:
    reasons = [f"INVALID: {clean_text(reason)}" for reason in summary.validity.reasons]
    if not summary.validity.is_valid and not reasons:
        reasons = ["INVALID: the client did not keep the schedule"]
    return [*reasons, *(["INTERRUPTED: only a part of the run"] if summary.is_interrupted else [])]


def _print_lines(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        # A long sentence stays one line: whoever reads the last line gets all of it.
        console.print(line, soft_wrap=True)


def _print_table(console: Console, table: NumberTable) -> None:
    if console.is_terminal and not console.is_dumb_terminal and not console.no_color:
        _print_boxed(console, table)
    else:
        _print_lines(console, ["", *align_table(table)])


def _print_boxed(console: Console, table: NumberTable) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    boxed = Table(title=table.title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(table.header):
        boxed.add_column(Text(name), justify="left" if _reads_left(table, i) else "right")
    for row in table.rows:
        boxed.add_row(*map(Text, row))
    boxed.show_header = any(table.header)
    console.print(boxed)
    if table.note:
        console.print(table.note)


def align_table(table: NumberTable) -> list[str]:
    """A table as lines of text with aligned columns."""
    rows = [table.header, *table.rows] if any(table.header) else list(table.rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        GAP.join(
            cell.ljust(width) if _reads_left(table, i) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return [table.title, *lines, *([table.note] if table.note else [])]


def _reads_left(table: NumberTable, column: int) -> bool:
    return column == 0 or not any(table.header)
