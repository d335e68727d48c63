"""Tokens that are seen a step late: the same steps, and nothing seen before it was there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.eval.requests import Ending, Limits, Observed
from bana.eval.simulator.engine_spec import TokensSeen
from bana.eval.simulator.showing import Showing

Make = Callable[..., Any]
LATE = TokensSeen.AFTER_NEXT
# Far more than any decode step and the smallest chunk take.
TPOT_S = 0.2


def find_tpot_s(seen: Observed) -> float:
    assert seen.first_s is not None
    assert seen.last_s is not None
    return (seen.last_s - seen.first_s) / (seen.output_tokens - 1)


def test_a_token_is_seen_with_the_end_of_the_step_that_follows_at_once() -> None:
    showing = Showing(LATE)
    showing.note_step(0.0, 1.0)
    showing.note_step(1.0, 3.0)
    showing.note_step(4.0, 5.0)
    # The second step is followed by a pause: nothing delays its result.
    assert list(showing.find_seen([1.0, 3.0, 5.0])) == [3.0, 3.0, 5.0]
    prompt = Showing(TokensSeen.AT_END)
    prompt.note_step(0.0, 1.0)
    prompt.note_step(1.0, 3.0)
    assert list(prompt.find_seen([1.0, 3.0])) == [1.0, 3.0]


def test_clients_see_first_tokens_late_and_last_ones_at_once(server: Any, ask: Make) -> None:
    # A prompt step of 110 ms, then two decode steps of 12 ms.
    asks = [ask(prompt=100, output=3)]
    at_once, late = server.serve(asks), server.but(tokens_seen=LATE).serve(asks)
    assert at_once.observed[0].event_times_s == pytest.approx((0.110, 0.122, 0.134))
    assert late.observed[0].event_times_s == pytest.approx((0.122, 0.134, 0.134))
    assert late.observed[0].end_s == pytest.approx(0.134)
    assert late.run.event_hash == at_once.run.event_hash


def test_a_client_that_went_away_is_not_called_back(server: Any, ask: Make) -> None:
    asks = [ask(prompt=100, output=3, cancel_after_s=0.115)]
    [seen] = server.but(tokens_seen=LATE).serve(asks).observed
    assert (seen.ending, seen.event_times_s, seen.end_s) == (Ending.CANCELLED, (), 0.115)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 120), st.integers(1, 6))))
def test_nothing_is_seen_early_or_out_of_order(
    server: Any, ask: Make, given_asks: Sequence[tuple[int, int, int]]
) -> None:
    asks = [ask(due_s=at / 1000, prompt=prompt, output=out) for at, prompt, out in given_asks]
    at_once, late = server.serve(asks), server.but(tokens_seen=LATE).serve(asks)
    for one, other in zip(at_once.observed, late.observed, strict=True):
        assert len(one.event_times_s) == len(other.event_times_s)
        assert all(a <= b for a, b in zip(one.event_times_s, other.event_times_s, strict=True))
        assert list(other.event_times_s) == sorted(other.event_times_s)
        assert other.ending is Ending.FINISHED
        assert other.end_s == other.last_s


def test_a_token_that_is_not_seen_yet_is_not_forgotten(server: Any, ask: Make) -> None:
    # The answer ends at 44 ms, which is seen with the end of the chunk that begins then.
    short = ask(prompt=10, output=3, limits=Limits(tpot_s=TPOT_S))
    late = server.but(tokens_seen=LATE, governor="tpot")
    [seen, _] = late.serve([short, ask(due_s=0.040, prompt=2000)]).observed
    assert seen.first_s == pytest.approx(0.032)
    assert 0.044 < seen.last_s <= 0.032 + 2 * TPOT_S
    [alone] = late.serve([short]).observed
    assert alone.last_s == pytest.approx(0.044)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 900), st.integers(1, 600), st.integers(2, 9)), max_size=9))
def test_the_governor_holds_what_clients_see(
    server: Any, ask: Make, given_asks: Sequence[tuple[int, int, int]]
) -> None:
    limits = Limits(tpot_s=TPOT_S)
    asks = [
        ask(due_s=at / 1000, prompt=prompt, output=out, limits=limits)
        for at, prompt, out in given_asks
    ]
    for seen in server.but(tokens_seen=LATE, governor="tpot").serve(asks).observed:
        assert find_tpot_s(seen) <= TPOT_S
