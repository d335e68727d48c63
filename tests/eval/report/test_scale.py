from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bana.eval.report.numbers import format_duration, format_figure
from bana.eval.report.scale import MIN_TICK_GAP, Scale, ScaleKind, plan_linear, plan_log, plan_span

FIGURES = st.floats(min_value=-1e6, max_value=1e6, allow_nan=False)


def test_linear_ticks_are_round_and_cover_the_values() -> None:
    axis = plan_linear(0.0, 8.3, format_figure)
    assert [t.at for t in axis.ticks] == [0, 2, 4, 6, 8, 10]
    assert (axis.scale.low, axis.scale.high) == (0, 10)


@given(FIGURES, FIGURES)
@example(-1000000.0, -999999.9999999999)
def test_any_linear_range_has_an_axis(a: float, b: float) -> None:
    low, high = sorted((a, b))
    axis = plan_linear(low, high, format_figure)
    slack = 1e-6 * max(1.0, abs(low), abs(high))
    assert axis.scale.low <= low + slack
    assert axis.scale.high >= high - slack
    assert axis.scale.low < axis.scale.high
    assert 2 <= len(axis.ticks) <= 13


@given(FIGURES, FIGURES)
def test_any_span_keeps_its_ends(a: float, b: float) -> None:
    low, high = sorted((a, b))
    axis = plan_span(low, high, format_figure)
    assert axis.scale.low == low
    assert axis.scale.high == high or low == high < axis.scale.high
    assert all(0.0 <= axis.scale.share(tick.at) <= 1.0 for tick in axis.ticks)


@given(st.lists(st.floats(min_value=0, max_value=1e5), max_size=5))
def test_any_latencies_have_an_axis(values: list[float]) -> None:
    axis = plan_log(values, format_duration)
    assert axis.scale.kind is ScaleKind.LOG
    assert 0 < axis.scale.low < axis.scale.high
    places = [axis.scale.share(tick.at) for tick in axis.ticks]
    assert len(places) >= 1
    gaps = [right - left for left, right in pairwise(places)]
    assert all(gap >= MIN_TICK_GAP * 0.8 for gap in gaps)
    for value in values:
        assert axis.scale.low * 0.99 <= max(value, 1e-5) <= axis.scale.high * 1.01


def test_shares_are_within_the_axis() -> None:
    linear = Scale(0.0, 10.0)
    assert [linear.share(v) for v in (-1, 0, 5, 11)] == [0, 0, 0.5, 1]
    log = Scale(0.01, 1.0, ScaleKind.LOG)
    assert [log.share(v) for v in (0.0, 0.1, 9.0)] == pytest.approx([0, 0.5, 1])
