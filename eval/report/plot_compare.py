"""Ratios of two systems with their intervals."""

from __future__ import annotations

from collections.abc import Sequence

from bana.eval.report.marks import Shape
from bana.eval.report.numbers import format_figure, format_interval, format_tick
from bana.eval.report.panel import FULL, Frame, open_panel
from bana.eval.report.plot import Plot, Width
from bana.eval.report.scale import Axis, Scale, Tick, plan_linear
from bana.eval.report.sentence import tabulate_comparisons
from bana.eval.report.svg import Point
from bana.eval.report.text import clean_text
from bana.eval.summary import Comparison

MAX_COMPARISONS = 12
ROW_HEIGHT = 36.0


def plot_comparisons(comparisons: Sequence[Comparison], ratio: str) -> Plot:
    """The `ratio` of each metric; an interval that holds 1 shows no difference."""
    shown = comparisons[:MAX_COMPARISONS]
    count = len(shown)
    ticks = tuple(Tick(count - 1.0 - i, clean_text(c.metric, 30)) for i, c in enumerate(shown))
    frame = Frame(width=FULL.width, height=58.0 + ROW_HEIGHT * count, left=240.0)
    ends = [1.0, *(c.ratio.low for c in shown), *(c.ratio.high for c in shown)]
    x = plan_linear(min(ends), max(ends), format_tick)
    label = f"{ratio}: median of the pairs with its 95 % interval"
    panel = open_panel(
        frame, Axis(x.scale, x.ticks, ratio), Axis(Scale(-0.5, count - 0.5), ticks), label
    )
    panel.draw_upright(1.0, "equal", "muted")
    for tick, c in zip(ticks, shown, strict=True):
        panel.draw_interval(Point(c.ratio.low, tick.at), Point(c.ratio.high, tick.at), "s0")
        bounds = format_interval(c.ratio, format_figure)
        tip = f"{c.metric}: {format_figure(c.ratio.value)} ({bounds}), {c.verdict}"
        panel.draw_mark(Point(c.ratio.value, tick.at), Shape.CIRCLE, "s0", tip)
    return Plot(
        title=ratio,
        svg=panel.render(),
        caption="An interval on both sides of 1 shows no difference.",
        table=tabulate_comparisons(shown, ratio),
        width=Width.FULL,
    )
