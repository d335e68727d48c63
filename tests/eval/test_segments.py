from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.eval.requests import Ending, Limits, LoadRun, Observed, Phase, Validity
from bana.eval.resampling import SEGMENTS, WHOLE, place_times
from bana.eval.runs import RunAbout, RunRecord, Window
from bana.eval.segments import (
    SegmentedValues,
    average_draws,
    cut_run,
    rank_draws,
    total_tokens,
)

WINDOW = Window(10.0, 20.0)


def request(
    due_s: float, waits_s: tuple[float, ...], phase: Phase = Phase.WINDOW, limit_s: float = 1.0
) -> Observed:
    """An answer whose tokens come so long after the schedule; two tokens an event."""
    times_s = tuple(due_s + wait_s for wait_s in waits_s)
    return Observed(
        index=int(due_s * 1000),
        due_s=due_s,
        ending=Ending.FINISHED if times_s else Ending.REJECTED,
        slo_class="default",
        limits=Limits(ttft_s=limit_s),
        phase=phase,
        prompt_tokens=4,
        asked_tokens=2,
        sent_s=due_s,
        first_s=times_s[0] if times_s else None,
        last_s=times_s[-1] if times_s else None,
        end_s=times_s[-1] if times_s else None,
        output_tokens=2 * len(times_s),
        event_times_s=times_s,
        event_tokens=(2,) * len(times_s),
    )


def test_requests_are_cut_by_when_they_were_due_and_tokens_by_when_they_came() -> None:
    warm = request(9.0, (0.5, 1.5), Phase.WARMUP)
    quick, late = request(10.0, (0.5,)), request(12.5, (3.0, 18.0))
    found = cut_run(
        RunRecord(
            RunAbout("t", 1, "f", {}, WINDOW.start_s),
            LoadRun((late, warm, quick), (), (), WINDOW.length_s, 40.0, Validity(True)),
        )
    )

    assert np.flatnonzero(found.offered).tolist() == [0, 1]
    assert np.flatnonzero(found.met).tolist() == [0]
    assert {i: found.tokens[i] for i in np.flatnonzero(found.tokens)} == {0: 4.0, 2: 2.0}
    assert found.ttft_s.values.tolist() == [0.5, 3.0]
    assert found.ttft_s.places.tolist() == [0, 1]
    assert found.tpot_s.values.tolist() == [0.0, 5.0]


@given(st.lists(st.lists(st.floats(0, 40), max_size=5).map(sorted), max_size=8))
def test_tokens_of_the_window_agree_with_a_naive_count(streams: list[list[float]]) -> None:
    observed = [request(5.0, tuple(stream)) for stream in streams]
    inside = [t for o in observed for t in o.event_times_s if 10.0 <= t < 30.0]

    assert total_tokens(observed, WINDOW).sum() == 2 * len(inside)


values = st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, SEGMENTS - 1)), max_size=40)
rows = st.lists(st.integers(0, 3), min_size=SEGMENTS, max_size=SEGMENTS)


@given(values, rows, st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_draws_agree_with_repeating_the_values(
    pairs: list[tuple[float, int]], row: list[int], quantile: float
) -> None:
    ordered = sorted(pairs)
    segmented = SegmentedValues(
        np.array([value for value, _ in ordered]), np.array([p for _, p in ordered], dtype=np.int64)
    )
    repeated = [value for value, place in ordered for _ in range(row[place])]
    weights = np.array([row], dtype=np.float64)
    ranked, mean = rank_draws(segmented, weights, quantile)[0], average_draws(segmented, weights)[0]

    if repeated:
        assert ranked == pytest.approx(np.quantile(repeated, quantile), rel=1e-9, abs=1e-9)
        assert mean == pytest.approx(np.mean(repeated), rel=1e-9, abs=1e-9)
    else:
        assert np.isnan(ranked)
        assert np.isnan(mean)


def test_the_whole_run_is_every_segment_once() -> None:
    times_s = np.linspace(10.0, 29.9, 50)
    segmented = SegmentedValues(times_s, place_times(times_s, WINDOW))

    assert average_draws(segmented, WHOLE)[0] == pytest.approx(times_s.mean())
    assert rank_draws(segmented, WHOLE, 0.9)[0] == pytest.approx(np.quantile(times_s, 0.9))
