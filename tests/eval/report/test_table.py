import io

import msgspec
import pytest

from bana.eval.report.records import NumberTable, ReportInput, StoredRun
from bana.eval.report.table import align_table, print_report, print_run
from bana.eval.requests import Validity

replace = msgspec.structs.replace


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    return Terminal()


def last_line(text: str) -> str:
    return text.rstrip("\n").rsplit("\n", 1)[-1]


def test_the_last_line_is_the_sentence(run_at_8: StoredRun) -> None:
    stream = io.StringIO()
    print_run(run_at_8, stream)
    assert last_line(stream.getvalue()) == run_at_8.summary.sentence
    assert len(run_at_8.summary.sentence) > 80


def test_a_terminal_gets_boxes_and_the_same_last_line(
    run_at_8: StoredRun, terminal: Terminal
) -> None:
    print_run(run_at_8, terminal)
    assert "─" in terminal.getvalue()
    assert last_line(terminal.getvalue()) == run_at_8.summary.sentence


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_plain_lines_where_asked(
    run_at_8: StoredRun, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    print_run(run_at_8, terminal)
    assert "─" not in terminal.getvalue()
    assert "\x1b" not in terminal.getvalue()


def test_every_group_and_latency_is_there_in_milliseconds(run_at_8: StoredRun) -> None:
    stream = io.StringIO()
    print_run(run_at_8, stream)
    text, summary = stream.getvalue(), run_at_8.summary
    for group in (*summary.classes, *summary.quartiles):
        assert group.name in text
    assert summary.overall.latencies.ttft_s is not None
    p99_ms = summary.overall.latencies.ttft_s.p99 * 1e3
    assert f"{p99_ms:,.0f}" in text
    assert "lateness of the client" in text


def test_warnings_come_first(run_at_8: StoredRun) -> None:
    validity = Validity(False, ("p99 lateness 80 ms, allowed 10 ms",))
    summary = replace(run_at_8.summary, validity=validity, is_interrupted=True)
    stream = io.StringIO()
    print_run(replace(run_at_8, summary=summary), stream)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "INVALID: p99 lateness 80 ms, allowed 10 ms"
    assert lines[1].startswith("INTERRUPTED")


def test_what_others_named_moves_no_cursor(run_at_8: StoredRun, terminal: Terminal) -> None:
    summary = run_at_8.summary
    hostile = replace(summary.overall, name="\x1b[2J[red]x[/red]\r\n")
    changed = replace(
        summary,
        classes=(hostile, hostile),
        target="http://u:p@h\x1b]0;t\x07/",
        sentence="a\x1b[1mb",
    )
    print_run(replace(run_at_8, summary=changed), terminal)
    text = terminal.getvalue()
    assert "\x1b[2J" not in text
    assert "\x1b]0" not in text
    assert "[red]x[/red]" in text
    assert last_line(text) == "a [1mb"


def test_a_grid_has_a_row_for_each_run(grid: ReportInput) -> None:
    stream = io.StringIO()
    print_report(grid, stream)
    text = stream.getvalue()
    assert text.count("yes") == len(grid.runs)
    assert "5.7" in last_line(text)


def test_columns_are_aligned() -> None:
    table = NumberTable("T", ("name", "n"), (("a", "1"), ("long name", "1,000")), "a note")
    assert align_table(table) == ["T", "name           n", "a              1",
                                  "long name  1,000", "a note"]  # fmt: skip
