from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.eval.bench.errors import BenchError
from bana.eval.bench.search import SearchPlan, Verdict, search_capacity, take_median
from bana.slo.errors import ConfigError

PLAN = SearchPlan(start_rps=100, min_rps=10, max_rps=10_000, tolerance=1.05, trials=3)


class Server:
    """Holds up to `capacity`; above `client`, the client is late instead."""

    def __init__(self, capacity: float, client: float = float("inf")) -> None:
        self.probed: list[float] = []
        self._capacity = capacity
        self._client = client

    def probe(self, rate_rps: float, trial: int) -> Verdict:
        del trial
        self.probed.append(rate_rps)
        if rate_rps <= min(self._capacity, self._client):
            return Verdict.HELD
        return Verdict.CLIENT_LATE if rate_rps > self._client else Verdict.EXCEEDED


@given(capacity=st.floats(min_value=10, max_value=9_999))
def test_the_answer_is_held_and_within_the_tolerance(capacity: float) -> None:
    server = Server(capacity)

    found = search_capacity(server.probe, PLAN)

    assert found.held_rps <= capacity <= found.held_rps * PLAN.tolerance
    assert found.limit is Verdict.EXCEEDED
    # Two equal verdicts decide a point.
    assert len(server.probed) == 2 * len(set(server.probed)) < 36


def test_a_late_client_is_not_blamed_on_the_server() -> None:
    found = search_capacity(Server(5_000, client=700).probe, PLAN)

    assert found.held_rps <= 700 < found.held_rps * 1.06
    assert found.limit is Verdict.CLIENT_LATE


def test_a_disturbed_trial_and_a_lucky_one_move_nothing() -> None:
    server = Server(900)
    taken: list[int] = []

    def probe(rate_rps: float, trial: int) -> Verdict:
        taken.append(trial)
        true = server.probe(rate_rps, trial)
        if trial != 1:
            return true
        return Verdict.EXCEEDED if true is Verdict.HELD else Verdict.HELD

    found = search_capacity(probe, PLAN)

    assert found == search_capacity(server.probe, PLAN)
    assert set(taken) == {0, 1, 2}


H, L, E = Verdict.HELD, Verdict.CLIENT_LATE, Verdict.EXCEEDED


@pytest.mark.parametrize(
    ("verdicts", "median", "taken"),
    [
        ([H, H, E], H, 2),
        ([E, E, H], E, 2),
        ([H, E, H], H, 3),
        ([H, E, E], E, 3),
        ([H, E, L], L, 3),
        ([L, E, E], E, 3),
        ([E], E, 1),
    ],
)
def test_the_median_decides_and_no_trial_is_wasted(
    verdicts: list[Verdict], median: Verdict, taken: int
) -> None:
    asked: list[int] = []

    def take(trial: int) -> Verdict:
        asked.append(trial)
        return verdicts[trial]

    assert take_median(take, len(verdicts)) is median
    assert asked == list(range(taken))


@given(st.lists(st.sampled_from([H, E]), min_size=3, max_size=3))
def test_held_and_exceeded_are_treated_alike(verdicts: list[Verdict]) -> None:
    swapped = [E if verdict is H else H for verdict in verdicts]

    assert {take_median(verdicts.__getitem__, 3), take_median(swapped.__getitem__, 3)} == {H, E}


def test_the_end_of_the_range_is_no_capacity() -> None:
    found = search_capacity(Server(1e9).probe, PLAN)

    assert (found.held_rps, found.limit) == (PLAN.max_rps, Verdict.HELD)


def test_a_server_that_holds_nothing_is_an_invalid_run() -> None:
    with pytest.raises(BenchError, match="even 10"):
        search_capacity(Server(1).probe, PLAN)


def test_a_plan_without_a_range_is_refused() -> None:
    with pytest.raises(ConfigError):
        SearchPlan(start_rps=5, min_rps=10, max_rps=100, tolerance=1.05, trials=3)
    with pytest.raises(ConfigError):
        SearchPlan(start_rps=10, min_rps=10, max_rps=100, tolerance=1.0, trials=3)
    with pytest.raises(ConfigError, match="odd"):
        SearchPlan(start_rps=10, min_rps=10, max_rps=100, tolerance=1.05, trials=2)
