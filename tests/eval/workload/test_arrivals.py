from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bana.eval.requests import Phase
from bana.eval.workload.arrivals import Phases, Process, plan_arrivals
from bana.eval.workload.spec import ArrivalKind, RampSpec

COUNT = 20_000
# Kolmogorov's statistic exceeds this in one of a thousand samples of the right distribution.
KS_LIMIT = 1.95
WINDOW = Phases(0.0, 1000.0, 0.0)


def plan(process: Process, phases: Phases = WINDOW, seed: int = 1) -> NDArray[np.float64]:
    return plan_arrivals(process, phases, np.random.default_rng(seed))


def distance(sorted_quantiles: NDArray[np.float64]) -> float:
    """Kolmogorov-Smirnov: how far what should be uniform is from it, times sqrt(n)."""
    n = len(sorted_quantiles)
    above = np.max(np.arange(1, n + 1) / n - sorted_quantiles)
    below = np.max(sorted_quantiles - np.arange(n) / n)
    return float(max(above, below) * math.sqrt(n))


def exponential(gaps: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sort(1 - np.exp(-gaps))


def erlang_4(gaps: NDArray[np.float64]) -> NDArray[np.float64]:
    x = 4 * gaps
    return np.sort(1 - np.exp(-x) * (1 + x + x**2 / 2 + x**3 / 6))


def gamma_half(gaps: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sort([math.erf(math.sqrt(gap / 2)) for gap in gaps.tolist()])


def test_poisson_gaps_are_exponential() -> None:
    times = plan(Process(ArrivalKind.POISSON, COUNT / 1000))

    assert distance(exponential(np.diff(times) * COUNT / 1000)) < KS_LIMIT
    assert len(times) == pytest.approx(COUNT, abs=4 * math.sqrt(COUNT))


def test_bench_serving_draws_what_its_global_generator_gives() -> None:
    rate_rps, phases = 5.0, Phases(0.0, 40.0, 0.0)
    np.random.seed(11)
    gaps = [float(np.random.exponential(1.0 / rate_rps)) for _ in range(300)]
    sent = np.cumsum([0.0, *gaps])

    times = plan_arrivals(
        Process(ArrivalKind.BENCH_SERVING, rate_rps), phases, np.random.RandomState(11)
    )

    assert 100 < len(times) < 300
    assert times == pytest.approx(sent[sent < 40.0], rel=1e-12)


def test_poisson_counts_do_not_depend_on_each_other() -> None:
    times = plan(Process(ArrivalKind.POISSON, COUNT / 1000))
    counts = np.histogram(times, bins=2000, range=(0, 1000))[0]

    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.13)
    assert abs(np.corrcoef(counts[1:], counts[:-1])[0, 1]) < 0.1


@pytest.mark.parametrize(("cv", "law"), [(0.5, erlang_4), (math.sqrt(2), gamma_half)])
def test_gamma_gaps_follow_the_gamma_law(cv: float, law) -> None:
    gaps = np.diff(plan(Process(ArrivalKind.GAMMA, COUNT / 1000, cv))) * COUNT / 1000

    assert distance(law(gaps)) < KS_LIMIT
    assert distance(exponential(gaps)) > KS_LIMIT


@pytest.mark.parametrize("cv", [0.1, 1.0, 3.0, 8.0])
def test_gamma_gaps_have_the_asked_mean_and_variation(cv: float) -> None:
    # The estimate of a large CV itself varies much: gaps of a high CV are rare and long.
    runs = [np.diff(plan(Process(ArrivalKind.GAMMA, 20.0, cv), seed=seed)) for seed in range(8)]
    gaps = np.concatenate(runs)

    assert gaps.mean() == pytest.approx(1 / 20, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.06)


def test_a_bursty_process_keeps_its_rate_from_the_first_second() -> None:
    first = [
        len(plan(Process(ArrivalKind.GAMMA, 2.0, 4.0), Phases(0.0, 1.0, 0.0), seed))
        for seed in range(4000)
    ]

    # A process begun with an arrival instead would offer several times as many.
    assert np.mean(first) == pytest.approx(2.0, abs=0.35)


def test_a_constant_process_is_evenly_spaced() -> None:
    times = plan(Process(ArrivalKind.CONSTANT, 4.0), Phases(1.0, 2.0, 1.0))

    assert times == pytest.approx(0.125 + np.arange(16) / 4)


def expected_by(t: NDArray[np.float64], ramp: RampSpec, phases: Phases) -> NDArray[np.float64]:
    inside = np.clip(t - phases.warmup_s, 0, phases.window_s)
    slope = (ramp.end - ramp.start) / phases.window_s
    after = np.maximum(t - phases.warmup_s - phases.window_s, 0)
    before = np.minimum(t, phases.warmup_s)
    return ramp.start * before + ramp.start * inside + slope * inside**2 / 2 + ramp.end * after


@pytest.mark.parametrize(("start", "end"), [(0.5, 1.5), (2.0, 0.25), (0.0, 1.0), (1.0, 0.0)])
def test_a_ramped_poisson_process_is_the_inhomogeneous_one(start: float, end: float) -> None:
    ramp, phases = RampSpec(start, end), Phases(100.0, 800.0, 100.0)
    times = plan(Process(ArrivalKind.POISSON, 20.0, ramp=ramp), phases)
    whole = expected_by(np.array([1000.0]), ramp, phases)[0]
    quantiles = expected_by(times, ramp, phases) / whole

    # Given their number, arrivals are independent draws from the intensity.
    assert distance(quantiles) < KS_LIMIT
    assert distance(exponential(np.diff(expected_by(times, ramp, phases)) * 20)) < KS_LIMIT
    assert len(times) == pytest.approx(20 * whole, abs=4 * math.sqrt(20 * whole))


def test_a_ramp_leaves_warmup_and_cooldown_at_its_ends() -> None:
    phases = Phases(100.0, 100.0, 100.0)
    times = plan(Process(ArrivalKind.CONSTANT, 10.0, ramp=RampSpec(0.5, 2.0)), phases)

    counts = np.histogram(times, bins=[0, 100, 200, 300])[0]
    assert counts.tolist() == pytest.approx([500, 1250, 2000], abs=1)


@settings(deadline=None)
@given(
    kind=st.sampled_from([ArrivalKind.POISSON, ArrivalKind.GAMMA, ArrivalKind.CONSTANT]),
    rate=st.floats(0.01, 50),
    cv=st.floats(0.05, 20),
    ends=st.tuples(st.floats(0, 5), st.floats(0.01, 5)),
    lengths=st.tuples(st.floats(0, 10), st.floats(0.1, 20), st.floats(0, 10)),
    before_s=st.floats(0, 20),
    seed=st.integers(0, 1000),
)
def test_times_are_sorted_and_inside_the_schedule(
    kind, rate, cv, ends, lengths, before_s, seed
) -> None:
    process = Process(kind, rate, cv, RampSpec(*ends), before_s)
    phases = Phases(*lengths)
    times = plan(process, phases, seed)

    assert np.all(np.diff(times) >= 0)
    assert np.all((times >= -before_s) & (times < phases.total_s))


@pytest.mark.parametrize("kind", [ArrivalKind.POISSON, ArrivalKind.GAMMA, ArrivalKind.CONSTANT])
def test_another_rate_is_the_same_process_compressed(kind: ArrivalKind) -> None:
    slow = plan(Process(kind, 5.0, 2.0), Phases(0.0, 100.0, 0.0))
    fast = plan(Process(kind, 10.0, 2.0), Phases(0.0, 50.0, 0.0))

    assert fast == pytest.approx(slow / 2)


@pytest.mark.parametrize("kind", [ArrivalKind.POISSON, ArrivalKind.GAMMA])
def test_a_longer_schedule_begins_with_the_same_arrivals(kind: ArrivalKind) -> None:
    short = plan(Process(kind, 5.0, 2.0), Phases(0.0, 30.0, 0.0))
    long = plan(Process(kind, 5.0, 2.0), Phases(0.0, 300.0, 0.0))

    assert long[: len(short)].tolist() == short.tolist()


def test_seeds_differ() -> None:
    process = Process(ArrivalKind.POISSON, 5.0)

    assert plan(process, seed=1).tolist() == plan(process, seed=1).tolist()
    assert plan(process, seed=1).tolist() != plan(process, seed=2).tolist()


def test_phases_meet_without_a_gap() -> None:
    phases = Phases(10.0, 20.0, 5.0)

    assert phases.total_s == 35.0
    assert [phases.phase_at(t) for t in (0.0, 9.99, 10.0, 29.99, 30.0, 34.99)] == [
        Phase.WARMUP,
        Phase.WARMUP,
        Phase.WINDOW,
        Phase.WINDOW,
        Phase.COOLDOWN,
        Phase.COOLDOWN,
    ]
