"""Attainment, goodput and waiting against the offered rate, for one system or several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from bana.eval.report.curves import Curve
from bana.eval.report.failures import GOOD
from bana.eval.report.marks import SERIES_SHAPES, Shape
from bana.eval.report.naming import name_run
from bana.eval.report.numbers import (
    format_count,
    format_duration,
    format_rate,
    format_rate_spread,
    format_round,
    format_round_share,
    format_share,
    format_share_spread,
    format_tick,
)
from bana.eval.report.panel import FULL, HALF, ROW_HEIGHT, Frame, Panel, open_panel
from bana.eval.report.plot import MAX_SERIES, SERIES_CSS, LegendEntry, Plot, Width
from bana.eval.report.records import NumberTable, ReportInput, StoredRun
from bana.eval.report.scale import Axis, plan_linear, plan_log, plan_span
from bana.eval.report.svg import Point
from bana.eval.report.text import clean_text
from bana.eval.summary import Group, LoadPoint, MaxRate, Spread

MAX_RUN_ROWS = 60
SAME_RATE = 1e-3
X_MARGIN = 1.06
MAX_WITH_INTERVALS = 2
X_LABEL = "offered requests per second"
QUARTILE_WORDS = ("shortest quarter", "second quarter", "third quarter", "longest quarter")


class Seen(msgspec.Struct, frozen=True):
    """One figure at one offered rate; `low` and `high` are equal where no interval is known."""

    offered_rps: float
    value: float
    low: float
    high: float
    tip: str
    is_valid: bool


class Side(msgspec.Struct, frozen=True):
    """The runs of one system."""

    name: str
    index: int
    runs: tuple[StoredRun, ...]
    max_rate: MaxRate | None

    @property
    def css(self) -> str:
        return SERIES_CSS[self.index]


def list_sides(report: ReportInput) -> tuple[Side, ...]:
    """The systems of a report by name, at most as many as there are colours."""
    found = {stored.origin.side for stored in report.runs} | set(report.max_rates)
    names = [*report.sides, *sorted(found - set(report.sides))]
    return tuple(
        Side(
            name=name,
            index=i,
            runs=tuple(s for s in report.runs if s.origin.side == name),
            max_rate=report.max_rates.get(name),
        )
        for i, name in enumerate(names[:MAX_SERIES])
    )


def plot_load(report: ReportInput) -> tuple[Plot, ...]:
    """Everything that is drawn against the offered rate."""
    sides = list_sides(report)
    plots = [_plot_attainment(report, sides), _plot_goodput(sides), _plot_ttft(sides)]
    if len(sides) == 1:
        plots += _plot_fairness(sides[0])
    return tuple(plots)


def tabulate_runs(runs: Sequence[StoredRun]) -> NumberTable:
    """One row a run, by offered rate."""
    ordered = sorted(runs, key=lambda s: (s.summary.offered_rps, s.origin.side))
    header = (
        "run", "offered", "attainment (95 %)", "goodput (95 %)",
        "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "no answer", "valid",
    )  # fmt: skip
    left_out = len(ordered) - MAX_RUN_ROWS
    note = f"{left_out} more runs are not listed." if left_out > 0 else ""
    return NumberTable("Runs", header, tuple(map(_list_run, ordered[:MAX_RUN_ROWS])), note)


def _list_run(stored: StoredRun) -> tuple[str, ...]:
    summary, overall = stored.summary, stored.summary.overall
    ttft, tpot = overall.latencies.ttft_s, overall.latencies.tpot_s
    return (
        name_run(stored),
        format_rate(summary.offered_rps),
        format_share_spread(overall.attainment),
        format_rate_spread(overall.goodput_rps),
        format_duration(ttft.p50 if ttft else None),
        format_duration(ttft.p99 if ttft else None),
        format_duration(tpot.p50 if tpot else None),
        format_duration(tpot.p99 if tpot else None),
        format_count(count_unanswered(overall)),
        "yes" if summary.validity.is_valid and not summary.is_interrupted else "no",
    )


def count_unanswered(group: Group) -> int:
    """How many requests had no whole answer, planned cancellations aside."""
    return sum(count for ending, count in group.endings.items() if ending not in GOOD)


def _plot_attainment(report: ReportInput, sides: Sequence[Side]) -> Plot:
    seen = {side.name: _see_attainment(side) for side in sides}
    raised = msgspec.structs.replace(FULL, top=FULL.top + ROW_HEIGHT * (len(sides) - 1))
    panel = _open(
        raised, seen, plan_linear(0.0, 1.0, format_round_share), "Attainment by offered rate"
    )
    for target in sorted({m.target for m in report.max_rates.values()})[:MAX_SERIES]:
        panel.draw_level(target, f"target {format_round_share(target)}", "muted")
    for row, side in enumerate(s for s in sides if s.max_rate is not None and s.max_rate.rps):
        _draw_max_rate(panel, side, row)
    for side in sides:
        _draw_seen(panel, side, seen[side.name])
    return Plot(
        title="Attainment",
        svg=panel.render(),
        caption="Bars are 95 % intervals; a cross is a run that is not valid.",
        legend=_explain(sides),
        width=Width.FULL,
    )


def _draw_max_rate(panel: Panel, side: Side, row: int) -> None:
    if side.max_rate is not None and side.max_rate.rps is not None:
        name = f"{clean_text(side.name, 24)} max rate".strip()
        panel.draw_upright(
            side.max_rate.rps, f"{name} {format_rate(side.max_rate.rps)}", side.css, row
        )


def _see_attainment(side: Side) -> tuple[Seen, ...]:
    seen = [
        _see(stored, stored.summary.overall.attainment, format_share_spread) for stored in side.runs
    ]
    points = () if side.max_rate is None else side.max_rate.points
    bare = (p for p in points if not any(_is_same_rate(p, s) for s in side.runs))
    seen += [
        Seen(p.offered_rps, p.attainment, p.attainment, p.attainment,
             f"{format_rate(p.offered_rps)}: {format_share(p.attainment)}", p.is_valid)
        for p in bare
    ]  # fmt: skip
    return tuple(sorted(seen, key=lambda s: s.offered_rps))


def _is_same_rate(point: LoadPoint, stored: StoredRun) -> bool:
    offered_rps = stored.summary.offered_rps
    return abs(point.offered_rps - offered_rps) <= SAME_RATE * offered_rps


def _see(stored: StoredRun, spread: Spread, form: Callable[[Spread], str]) -> Seen:
    summary = stored.summary
    is_valid = summary.validity.is_valid and not summary.is_interrupted
    tip = f"{name_run(stored)}: {form(spread)}"
    return Seen(summary.offered_rps, spread.value, spread.low, spread.high, tip, is_valid)


def _plot_goodput(sides: Sequence[Side]) -> Plot:
    seen = {
        side.name: tuple(
            _see(s, s.summary.overall.goodput_rps, format_rate_spread) for s in side.runs
        )
        for side in sides
    }
    highest = max((s.high for group in seen.values() for s in group), default=1.0)
    panel = _open(HALF, seen, plan_linear(0.0, highest, format_tick), "Goodput by offered rate")
    rates = [s.offered_rps for group in seen.values() for s in group]
    if rates:
        # Up to this line, every request that is offered meets its limits.
        ends = (0.0, min(max(rates), highest))
        panel.draw_curve(Curve(ends, ends), "muted")
    for side in sides:
        _draw_seen(panel, side, seen[side.name])
    return Plot(
        title="Goodput, requests per second that met their limits",
        svg=panel.render(),
        caption="The grey line is everything that was offered.",
        legend=_explain(sides),
    )


def _plot_ttft(sides: Sequence[Side]) -> Plot:
    seen = {side.name: _see_ttft(side) for side in sides}
    values = [s.value for group in seen.values() for s in group]
    panel = _open(HALF, seen, plan_log(values, format_round), "TTFT p99 by offered rate")
    for side in sides:
        _draw_seen(panel, side, seen[side.name])
    return Plot(title="TTFT p99", svg=panel.render(), legend=_explain(sides))


def _see_ttft(side: Side) -> tuple[Seen, ...]:
    known = ((s, s.summary.overall.latencies.ttft_s) for s in side.runs)
    spreads = ((s, Spread(d.p99, d.p99, d.p99)) for s, d in known if d is not None)
    return tuple(_see(s, spread, _say_duration) for s, spread in spreads)


def _say_duration(spread: Spread) -> str:
    return format_duration(spread.value)


def _plot_fairness(side: Side) -> list[Plot]:
    """Attainment of each class, and of each quartile, against the rate."""
    classes = {g.name for s in side.runs for g in s.summary.classes}
    plots = []
    if 1 < len(classes) <= MAX_SERIES:
        by_name = {name: _see_class(side, name) for name in sorted(classes)}
        plots.append(_plot_parts("Attainment by class", by_name))
    quartiles = max((len(s.summary.quartiles) for s in side.runs), default=0)
    if 1 < quartiles <= MAX_SERIES:
        parts = {QUARTILE_WORDS[i]: _see_quartile(side, i) for i in range(quartiles)}
        plots.append(_plot_parts("Attainment by quartile of prompt length", parts))
    return plots


def _plot_parts(title: str, parts: Mapping[str, tuple[Seen, ...]]) -> Plot:
    panel = _open(
        HALF, parts, plan_linear(0.0, 1.0, format_round_share), f"{title} and offered rate"
    )
    sides = [Side(name, i, (), None) for i, name in enumerate(parts)]
    for side in sides:
        # More intervals than two at a rate hide each other.
        shown = parts[side.name] if len(parts) <= MAX_WITH_INTERVALS else _drop(parts[side.name])
        _draw_seen(panel, side, shown)
    return Plot(title=title, svg=panel.render(), legend=_explain(sides))


def _drop(seen: Sequence[Seen]) -> tuple[Seen, ...]:
    return tuple(msgspec.structs.replace(s, low=s.value, high=s.value) for s in seen)


def _see_class(side: Side, name: str) -> tuple[Seen, ...]:
    groups = ((s, g) for s in side.runs for g in s.summary.classes if g.name == name)
    return tuple(_see(s, g.attainment, format_share_spread) for s, g in groups)


def _see_quartile(side: Side, index: int) -> tuple[Seen, ...]:
    known = (s for s in side.runs if index < len(s.summary.quartiles))
    return tuple(_see(s, s.summary.quartiles[index].attainment, format_share_spread) for s in known)


def _open(frame: Frame, seen: Mapping[str, tuple[Seen, ...]], y: Axis, label: str) -> Panel:
    rates = [s.offered_rps for group in seen.values() for s in group]
    x = plan_span(0.0, X_MARGIN * max(rates, default=1.0), format_tick, ticks=8)
    return open_panel(frame, msgspec.structs.replace(x, label=X_LABEL), y, label)


def _draw_seen(panel: Panel, side: Side, seen: Sequence[Seen]) -> None:
    valid = [s for s in seen if s.is_valid]
    rates = sorted({s.offered_rps for s in valid})
    means = [float(np.mean([s.value for s in valid if s.offered_rps == r])) for r in rates]
    panel.draw_curve(Curve(tuple(rates), tuple(means)), side.css)
    for s in seen:
        if s.high > s.low:
            ends = Point(s.offered_rps, s.low), Point(s.offered_rps, s.high)
            panel.draw_interval(*ends, side.css)
        shape = SERIES_SHAPES[side.index] if s.is_valid else Shape.CROSS
        panel.draw_mark(Point(s.offered_rps, s.value), shape, side.css, s.tip)


def _explain(sides: Sequence[Side]) -> tuple[LegendEntry, ...]:
    named = [side for side in sides if side.name]
    return tuple(LegendEntry(side.css, clean_text(side.name, 40)) for side in named)
