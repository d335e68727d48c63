"""What a launch shows while it waits."""

from __future__ import annotations

import io

import pytest

from sglang_bana.cluster import progress
from sglang_bana.cluster.progress import LiveReporter, PlainReporter, Row, choose_reporter

ROW = Row("instance-0", "starting", 3.2, "loading [/bold] weights", "/run/logs/instance-0.log")


def test_plain_lines_come_once_for_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    reporter = PlainReporter(stream)
    for _ in range(3):
        reporter.show([ROW])
    assert stream.getvalue() == "instance-0: starting\n"
    monkeypatch.setattr(progress, "REMIND_S", 0.0)
    reporter.show([ROW])
    said = stream.getvalue().splitlines()[1:]
    assert said == [
        "instance-0: starting for 3 s: loading [/bold] weights",
        "    log: /run/logs/instance-0.log",
    ]


def test_live_lines_are_cut_to_the_terminal_and_never_read_as_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    reporter = LiveReporter()
    reporter.say("a line [/bold] that stays")
    reporter.show([ROW])
    reporter.close()
    shown = capsys.readouterr().out
    assert "a line [/bold] that stays" in shown
    assert "instance-0: starting for 3 s: loading […" in shown.replace("\r", "")


def test_without_a_terminal_lines_are_plain(monkeypatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: False, raising=False)
    assert isinstance(choose_reporter(), PlainReporter)


@pytest.mark.parametrize("variable", ["NO_COLOR", "TERM"])
def test_a_terminal_may_want_plain_lines(monkeypatch, variable: str) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv(variable, "dumb")
    assert isinstance(choose_reporter(), PlainReporter)
