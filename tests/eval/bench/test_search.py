from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.eval.bench.errors import BenchError
from bana.eval.bench.search import SearchPlan, Verdict, search_capacity
from bana.slo.errors import ConfigError

PLAN = SearchPlan(start_rps=100, min_rps=10, max_rps=10_000, tolerance=1.05)


class Server:
    """Holds up to `capacity`; above `client`, the client is late instead."""

    def __init__(self, capacity: float, client: float = float("inf")) -> None:
        self.probed: list[float] = []
        self._capacity = capacity
        self._client = client

    def probe(self, rate_rps: float) -> Verdict:
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
    assert len(server.probed) < 36


def test_a_late_client_is_not_blamed_on_the_server() -> None:
    found = search_capacity(Server(5_000, client=700).probe, PLAN)

    assert found.held_rps <= 700 < found.held_rps * 1.06
    assert found.limit is Verdict.CLIENT_LATE


@pytest.mark.parametrize("disturbed", [Verdict.CLIENT_LATE, Verdict.EXCEEDED])
def test_one_disturbance_does_not_cap_the_answer(disturbed: Verdict) -> None:
    server = Server(900)
    calls: list[float] = []

    def probe(rate_rps: float) -> Verdict:
        calls.append(rate_rps)
        return disturbed if len(calls) == 2 else server.probe(rate_rps)

    found = search_capacity(probe, PLAN)

    assert 850 < found.held_rps <= 900
    assert found.limit is Verdict.EXCEEDED


def test_the_end_of_the_range_is_no_capacity() -> None:
    found = search_capacity(Server(1e9).probe, PLAN)

    assert (found.held_rps, found.limit) == (PLAN.max_rps, Verdict.HELD)


def test_a_server_that_holds_nothing_is_an_invalid_run() -> None:
    with pytest.raises(BenchError, match="even 10"):
        search_capacity(Server(1).probe, PLAN)


def test_a_plan_without_a_range_is_refused() -> None:
    with pytest.raises(ConfigError):
        SearchPlan(start_rps=5, min_rps=10, max_rps=100, tolerance=1.05)
    with pytest.raises(ConfigError):
        SearchPlan(start_rps=10, min_rps=10, max_rps=100, tolerance=1.0)
