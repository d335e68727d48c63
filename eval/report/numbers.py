"""Figures as people read them. None reads as a dash: not measured, never zero."""

from __future__ import annotations

import math
from collections.abc import Callable

from bana.eval.summary import Spread

NOTHING = "–"
Format = Callable[[float], str]


def format_count(value: float) -> str:
    """A whole number with separated thousands."""
    return f"{value:,.0f}"


def format_figure(value: float) -> str:
    """Three significant digits, or the whole number where that is more; thousands separated."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    rounded = float(f"{value:.2e}")
    digits = 2 - math.floor(math.log10(abs(rounded)))
    return f"{value:,.{min(max(digits, 0), 6)}f}"


def format_tick(value: float) -> str:
    """A round number as it marks an axis, without zeros that say nothing."""
    return f"{value:,.6g}"


def format_rate(value: float) -> str:
    """A rate per second, with its unit."""
    return f"{format_figure(value)}/s"


def format_ms(value_s: float | None) -> str:
    """Milliseconds without a unit, for columns whose title names it."""
    return NOTHING if value_s is None else format_figure(value_s * 1e3)


def format_duration(value_s: float | None) -> str:
    """A duration with the unit that fits it."""
    if value_s is None:
        return NOTHING
    if 0 < abs(value_s) < 0.9995e-3:
        return f"{format_figure(value_s * 1e6)} µs"
    if abs(value_s) < 0.9995:
        return f"{format_figure(value_s * 1e3)} ms"
    return f"{format_figure(value_s)} s"


def format_round(value_s: float) -> str:
    """A round duration, as a limit or a mark on an axis."""
    if 0 < abs(value_s) < 0.9995e-3:
        return f"{format_tick(value_s * 1e6)} µs"
    if 0 < abs(value_s) < 0.9995:
        return f"{format_tick(value_s * 1e3)} ms"
    return f"{format_tick(value_s)} s"


def format_percent(share: float) -> str:
    """A share in per cent without its sign, rounded down: only all of it reads as 100."""
    if share in (0.0, 1.0):
        return f"{share * 100:.0f}"
    # The smallest shares are not nothing.
    return f"{max(math.floor(share * 1000 + 1e-9) / 10, 0.1):.1f}"


def format_round_share(share: float) -> str:
    """A round share, as a target or a mark on an axis."""
    return f"{format_tick(share * 100)} %"


def format_share(share: float | None) -> str:
    """A share as a percentage."""
    return NOTHING if share is None else f"{format_percent(share)} %"


def format_interval(spread: Spread, form: Format) -> str:
    """The bounds of a spread."""
    return f"{form(spread.low)}–{form(spread.high)}"


def format_share_spread(spread: Spread) -> str:
    """A share with its bounds behind it."""
    return f"{format_share(spread.value)} ({format_interval(spread, format_percent)})"


def format_rate_spread(spread: Spread) -> str:
    """A rate with its bounds behind it."""
    return f"{format_rate(spread.value)} ({format_interval(spread, format_figure)})"
