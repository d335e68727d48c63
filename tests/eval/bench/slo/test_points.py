"""What a point says is kept as numbers, and read again as it was."""

from __future__ import annotations

import msgspec
import pytest

from bana.eval.bench.errors import BenchError
from bana.eval.bench.slo.points import list_values, read_isolated, read_point
from bana.eval.client.isolated import TtftPoint
from bana.eval.goodput import summarise
from bana.eval.requests import Ending, Limits, LoadRun, Observed, Phase, Validity
from bana.eval.runs import RunAbout
from bana.eval.summary import Summary

ABOUT = RunAbout("side", 0, "print", {})
LIMITS = Limits(ttft_s=1.0, tpot_s=0.1)


def answered(index: int, ttft_s: float = 0.5, tpot_s: float = 0.05) -> Observed:
    due_s = 0.1 * index
    first_s = due_s + ttft_s
    return Observed(
        index=index,
        due_s=due_s,
        ending=Ending.FINISHED,
        slo_class="default",
        limits=LIMITS,
        phase=Phase.WINDOW,
        prompt_tokens=10 + index,
        asked_tokens=3,
        sent_s=due_s,
        first_s=first_s,
        last_s=first_s + 2 * tpot_s,
        end_s=first_s + 2 * tpot_s,
        output_tokens=3,
        event_times_s=(first_s, first_s + 2 * tpot_s),
        event_tokens=(1, 2),
    )


def silent(index: int) -> Observed:
    return msgspec.structs.replace(
        answered(index),
        ending=Ending.UNFINISHED,
        first_s=None,
        last_s=None,
        output_tokens=0,
        event_times_s=(),
        event_tokens=(),
    )


def summary_of(*observed: Observed) -> Summary:
    return summarise(LoadRun(observed, (), (), 4.0, 9.0, Validity(True)), ABOUT)


def test_misses_are_told_apart() -> None:
    requests = [answered(i) for i in range(6)]
    requests += [answered(6, ttft_s=1.5), answered(7, tpot_s=0.2)]

    seen = read_point(list_values(summary_of(*requests)))

    assert (seen.offered, seen.met, seen.rate_rps) == (8, 6, 2.0)
    assert (seen.missed_ttft, seen.missed_tpot, seen.unanswered) == (1, 1, 0)
    # The longest quartile is that of the two requests that missed.
    assert (seen.longest_attainment, seen.attainment) == (0.0, 0.75)
    assert seen.ttft_mean_s == pytest.approx((7 * 0.5 + 1.5) / 8)
    assert seen.load_point.is_valid
    assert seen.load_point.p99_ttft_s == seen.ttft_p99_s


def test_a_p99_of_those_that_were_answered_is_none() -> None:
    values = list_values(summary_of(*(answered(i) for i in range(7)), silent(7)))

    seen = read_point(values)

    assert (seen.unanswered, seen.ttft_p99_s) == (1, None)
    assert seen.ttft_mean_s == pytest.approx(0.5)


def test_a_window_without_requests_proves_nothing() -> None:
    with pytest.raises(BenchError, match="no request in its window"):
        list_values(summary_of())


def test_the_isolated_latency_survives_an_interruption() -> None:
    values = {"requests": 20.0, "tpot_s": 0.07, "ttft_s 900": 2.0, "ttft_s 16": 0.1}

    isolated = read_isolated(values)

    assert isolated.points == (TtftPoint(16, 0.1), TtftPoint(900, 2.0))
    assert (isolated.tpot_s, isolated.requests) == (0.07, 20)
