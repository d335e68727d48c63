import pytest

from bana.eval.report.numbers import (
    format_duration,
    format_figure,
    format_ms,
    format_rate_spread,
    format_round,
    format_round_share,
    format_share,
    format_share_spread,
)
from bana.eval.summary import Spread


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.00123, "0.00123"), (1.5, "1.50"), (12.34, "12.3"), (999.4, "999"),
     (1932.0, "1,932"), (9.999, "10.0"), (float("inf"), "inf"), (-4.2, "-4.20")],
)  # fmt: skip
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert format_figure(value) == text


@pytest.mark.parametrize(
    ("value_s", "text"),
    [(None, "–"), (0.0, "0 ms"), (0.99996, "1.00 s"), (0.0000421, "42.1 µs"),
     (0.0123, "12.3 ms"), (1.932, "1.93 s"), (120.0, "120 s")],
)  # fmt: skip
def test_durations_choose_their_unit(value_s: float | None, text: str) -> None:
    assert format_duration(value_s) == text


@pytest.mark.parametrize(
    ("value_s", "text"),
    [(0.5, "500 ms"), (4.0, "4 s"), (4.25, "4.25 s"), (0.00002, "20 µs"), (0.001, "1 ms"),
     (0.1 + 0.2, "300 ms"), (0.0, "0 s"), (1000.0, "1,000 s")],
)  # fmt: skip
def test_round_durations_have_no_zeros_that_say_nothing(value_s: float, text: str) -> None:
    assert format_round(value_s) == text
    assert format_round_share(0.9) == "90 %"


def test_milliseconds_for_columns() -> None:
    assert format_ms(1.932) == "1,932"
    assert format_ms(None) == "–"


@pytest.mark.parametrize(
    ("share", "text"),
    [(1.0, "100 %"), (0.99999, "99.9 %"), (0.924, "92.4 %"), (0.57, "57.0 %"), (0.0, "0 %"),
     (0.00001, "0.1 %"), (None, "–")],
)  # fmt: skip
def test_only_all_is_a_hundred_per_cent_and_only_none_is_nought(
    share: float | None, text: str
) -> None:
    assert format_share(share) == text


def test_spreads_show_their_bounds() -> None:
    assert format_share_spread(Spread(0.924, 0.901, 0.943)) == "92.4 % (90.1–94.3)"
    assert format_rate_spread(Spread(7.41, 7.2, 7.6)) == "7.41/s (7.20–7.60)"
