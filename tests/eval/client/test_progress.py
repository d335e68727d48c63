from __future__ import annotations

import io

import pytest
from rich.console import Console

from bana.eval.client.progress import BarWatch, LineWatch, describe_tally, open_watch
from bana.eval.client.watch import Tally


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_and_everything_else_lines() -> None:
    assert isinstance(open_watch(Terminal()), BarWatch)
    assert isinstance(open_watch(io.StringIO()), LineWatch)


def test_lines_say_how_it_begins_goes_on_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bana.eval.client.progress.PLAIN_INTERVAL_S", 0.0)
    stream = io.StringIO()
    watch = LineWatch(stream)

    watch.begin("load", 9)
    watch.show(Tally(5, 2, 1, 3.0))
    watch.show(Tally(9, 9, 1, 0.0))
    watch.end()

    assert stream.getvalue().splitlines() == [
        "load: 9 requests",
        "load: 2/9 done, 3 out, 1 failed, 3 s left",
        "load: 9/9 done, 0 out, 1 failed",
        "load: 9/9 done, 0 out, 1 failed",
    ]


def test_lines_are_few() -> None:
    stream = io.StringIO()
    watch = LineWatch(stream)

    watch.begin("load", 9)
    for sent in range(100):
        watch.show(Tally(sent, sent, 0, 3.0))

    assert stream.getvalue() == "load: 9 requests\n"


def test_the_bar_shows_the_same_and_can_be_used_again() -> None:
    stream = io.StringIO()
    watch = BarWatch(Console(file=stream, force_terminal=True, width=120))

    for label in ("self-test", "load"):
        watch.begin(label, 9)
        watch.show(Tally(5, 2, 1, 3.0))
        watch.say("a line that [stays]")
        watch.end()

    shown = stream.getvalue()
    for part in ("self-test", "load", "2/9", "3 out, 1 failed, 3 s left", "a line that [stays]"):
        assert part in shown


def test_a_stream_that_is_closed_stops_nothing() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    watch = open_watch(Closed())
    watch.begin("load", 9)
    watch.show(Tally(1, 1, 0, 1.0))
    watch.say("x")
    watch.end()


def test_a_tally_in_words() -> None:
    assert describe_tally(Tally(3, 1, 0, 61.4)) == "2 out, 0 failed, 61 s left"
