from __future__ import annotations

import itertools
import math
import random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.eval.distributions import (
    describe,
    describe_latencies,
    measure_e2e_s,
    measure_gaps_s,
    measure_tpot_s,
    measure_ttft_s,
    measure_wait_s,
)
from bana.eval.requests import Ending, Limits, Observed, Phase
from bana.eval.summary import Latencies
from bana.slo.errors import ConfigError


def request(**changes: Any) -> Observed:
    """Due at 10 s, sent at 10.25 s, tokens at 11, 12, 12 and 14 s, over at 14.5 s."""
    whole = Observed(
        index=0,
        due_s=10.0,
        ending=Ending.FINISHED,
        slo_class="default",
        limits=Limits(),
        phase=Phase.WINDOW,
        prompt_tokens=7,
        asked_tokens=4,
        sent_s=10.25,
        first_s=11.0,
        last_s=14.0,
        end_s=14.5,
        output_tokens=4,
        event_times_s=(11.0, 12.0, 14.0),
        event_tokens=(1, 2, 1),
    )
    return msgspec.structs.replace(whole, **changes)


NEVER_SENT = request(
    ending=Ending.UNFINISHED,
    sent_s=None,
    first_s=None,
    last_s=None,
    end_s=None,
    output_tokens=0,
    event_times_s=(),
    event_tokens=(),
)


def naive_quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    rank = share * (len(ordered) - 1)
    low, high = ordered[math.floor(rank)], ordered[math.ceil(rank)]
    return low + (high - low) * (rank - math.floor(rank))


@given(st.lists(st.floats(-1e12, 1e12) | st.none(), max_size=60))
def test_percentiles_agree_with_a_naive_computation(values: list[float | None]) -> None:
    known = [value for value in values if value is not None]
    found = describe(values)

    if not known:
        assert found is None
        return
    assert found is not None
    assert found.count == len(known)
    assert found.mean == pytest.approx(math.fsum(known) / len(known), rel=1e-9, abs=1e-3)
    assert found.largest == max(known)
    for share, seen in ((0.5, found.p50), (0.9, found.p90), (0.95, found.p95), (0.99, found.p99)):
        assert seen == pytest.approx(naive_quantile(known, share), rel=1e-9, abs=1e-3)


@given(st.lists(st.floats(0, 1e9), min_size=1), st.randoms(use_true_random=False))
def test_the_order_of_values_changes_nothing(values: list[float], shuffler: random.Random) -> None:
    shuffled = shuffler.sample(values, len(values))

    assert describe(shuffled) == describe(values)


@given(st.lists(st.floats(0, 1.7e308), min_size=1))
def test_figures_rise_and_stay_within_their_values(values: list[float]) -> None:
    found = describe(values)

    assert found is not None
    assert min(values) <= found.mean <= found.largest == max(values)
    assert min(values) <= found.p50 <= found.p90 <= found.p95 <= found.p99 <= found.largest


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="finite"):
        describe([1.0, value])


def test_latencies_of_one_request() -> None:
    assert measure_ttft_s(request()) == 1.0
    assert measure_tpot_s(request()) == 1.0
    assert measure_e2e_s(request()) == 4.5
    assert measure_gaps_s(request()).tolist() == [1.0, 2.0]


def test_events_without_tokens_make_no_gap() -> None:
    stalled = request(event_times_s=(10.5, 11.0, 12.0, 14.0), event_tokens=(0, 1, 0, 3))

    assert measure_gaps_s(stalled).tolist() == [3.0]


@pytest.mark.parametrize("tokens", [0, 1])
def test_fewer_than_two_tokens_have_no_tpot(tokens: int) -> None:
    assert measure_tpot_s(request(output_tokens=tokens)) is None


def test_only_whole_answers_have_an_end_to_end_latency() -> None:
    others = [ending for ending in Ending if ending is not Ending.FINISHED]

    assert [measure_e2e_s(request(ending=ending)) for ending in others] == [None] * len(others)
    assert {measure_wait_s(request(ending=ending)) for ending in Ending} == {4.5}


def test_what_was_never_sent_has_no_latency() -> None:
    nothing = Latencies(None, None, None, None, None, None)

    assert describe_latencies([NEVER_SENT]) == nothing
    assert describe_latencies([]) == nothing


def test_latencies_from_the_send_stand_beside_those_from_the_schedule() -> None:
    found = describe_latencies([request(), NEVER_SENT])

    assert found.ttft_s == describe([1.0])
    assert found.ttft_from_send_s == describe([0.75])
    assert found.e2e_s == describe([4.5])
    assert found.e2e_from_send_s == describe([4.25])
    assert found.tpot_s == describe([1.0])
    assert found.itl_s == describe([1.0, 2.0])


@given(st.lists(st.lists(st.floats(0, 100), max_size=6), max_size=6))
def test_gaps_of_all_requests_agree_with_a_naive_computation(waits_s: list[list[float]]) -> None:
    streams = [sorted(stream) for stream in waits_s]
    requests = [
        request(event_times_s=tuple(stream), event_tokens=(1,) * len(stream)) for stream in streams
    ]
    gaps_s = [b - a for stream in streams for a, b in itertools.pairwise(stream)]
    found = describe_latencies(requests).itl_s

    assert (0 if found is None else found.count) == len(gaps_s)
    if found is not None:
        assert found.largest == max(gaps_s)
        assert found.mean == pytest.approx(float(np.mean(gaps_s)))
