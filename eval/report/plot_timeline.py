"""What happened when: four strips over the same seconds."""

from __future__ import annotations

from collections.abc import Sequence

from bana.eval.report.curves import BinSummary, Curve
from bana.eval.report.marks import Shape
from bana.eval.report.numbers import format_count, format_duration, format_round, format_tick
from bana.eval.report.panel import STRIP, Panel, open_panel
from bana.eval.report.plot import LegendEntry, Plot, Width
from bana.eval.report.records import NumberTable, StoredRun
from bana.eval.report.scale import Axis, plan_linear, plan_log, plan_span
from bana.eval.report.svg import Point
from bana.eval.report.timeline import CAUSES, Probed, Timeline, trace_timeline
from bana.eval.summary import Dimension

MAX_TABLE_ROWS = 24
CAUSE_CSS = {
    Dimension.NO_ANSWER: "m-none",
    Dimension.TTFT: "m-ttft",
    Dimension.TPOT: "m-tpot",
    Dimension.E2E: "m-e2e",
}
CAUSE_WORDS = {
    Dimension.NO_ANSWER: "no answer",
    Dimension.TTFT: "TTFT",
    Dimension.TPOT: "TPOT",
    Dimension.E2E: "E2E",
}


def plot_timeline(stored: StoredRun) -> tuple[Plot, ...]:
    """Arrivals and ends, misses, TTFT with the probes', and what the server told."""
    timeline = trace_timeline(stored)
    strips = [_plot_rates(timeline), _plot_misses(timeline)]
    if timeline.ttft_s.medians or timeline.probes is not None:
        strips.append(_plot_ttft(timeline))
    if timeline.running is not None or timeline.waiting is not None:
        strips.append(_plot_server(timeline))
    return tuple(strips)


def _open(timeline: Timeline, y: Axis, label: str) -> Panel:
    bins, window = timeline.bins, timeline.window
    x = plan_span(bins.start_s, bins.end_s, _format_second, ticks=10)
    panel = open_panel(STRIP, x, y, label)
    panel.shade(bins.start_s, window.start_s, "outside")
    panel.shade(window.end_s, x.scale.high, "outside")
    return panel


def _plot_rates(timeline: Timeline) -> Plot:
    width_s = timeline.bins.width_s
    offered = [n / width_s for n in timeline.offered]
    finished = [n / width_s for n in timeline.finished]
    y = plan_linear(0.0, max([*offered, *finished, 1.0]), format_tick, ticks=4)
    panel = _open(timeline, y, "Requests per second, offered and finished, over the run")
    edges_s = timeline.bins.edges_s
    panel.fill_steps(edges_s, [0.0] * len(offered), offered, "offered")
    panel.draw_steps(edges_s, finished, "s0")
    return Plot(
        title="Requests per second",
        svg=panel.render(),
        legend=(
            LegendEntry("offered", "offered, when due"),
            LegendEntry("s0", "finished, when over"),
            LegendEntry("outside", "warm-up and cool-down: not counted"),
        ),
        table=_tabulate(timeline),
        width=Width.FULL,
    )


def _plot_misses(timeline: Timeline) -> Plot:
    totals = [sum(counts) for counts in zip(*timeline.missed.values(), strict=True)]
    y = plan_linear(0.0, max([*totals, 1]), format_tick, ticks=min(4, max([*totals, 1])))
    panel = _open(timeline, y, "Requests that missed, by when they were due and by cause")
    floors = [0.0] * timeline.bins.count
    for cause in CAUSES:
        heights = [f + n for f, n in zip(floors, timeline.missed[cause], strict=True)]
        if any(timeline.missed[cause]):
            panel.fill_steps(timeline.bins.edges_s, floors, heights, CAUSE_CSS[cause])
        floors = heights
    return Plot(
        title="Missed, by when they were due",
        svg=panel.render(),
        caption="A request that missed in several ways is drawn once, by the first of: "
        + ", ".join(CAUSE_WORDS[cause] for cause in CAUSES)
        + ".",
        legend=explain_causes([cause for cause in CAUSES if any(timeline.missed[cause])]),
        width=Width.FULL,
    )


def explain_causes(causes: Sequence[Dimension]) -> tuple[LegendEntry, ...]:
    """What the colours of these misses mean."""
    return tuple(LegendEntry(CAUSE_CSS[cause], CAUSE_WORDS[cause]) for cause in causes)


def _plot_ttft(timeline: Timeline) -> Plot:
    seen, probes = timeline.ttft_s, timeline.probes
    probed = () if probes is None else probes.answered.largest
    y = plan_log([*seen.medians, *seen.largest, *probed], format_round)
    panel = _open(timeline, y, "TTFT over the run: requests and probes")
    panel.draw_curve(Curve(seen.middles_s, seen.largest), "s1")
    panel.draw_curve(Curve(seen.middles_s, seen.medians), "s0")
    legend = [LegendEntry("s0", "median of requests"), LegendEntry("s1", "slowest request")]
    if probes is not None:
        _draw_probes(panel, probes, y)
        legend.append(LegendEntry("dot s2", "one-token probe (× without an answer)"))
    return Plot(
        title="TTFT, by when requests were due",
        svg=panel.render(),
        legend=tuple(legend),
        width=Width.FULL,
    )


def _draw_probes(panel: Panel, probes: Probed, y: Axis) -> None:
    answered = probes.answered
    for at_s, ttft_s in zip(answered.middles_s, answered.largest, strict=True):
        tip = f"probe at {at_s:.0f} s: {format_duration(ttft_s)}"
        panel.draw_mark(Point(at_s, ttft_s), Shape.CIRCLE, "small s2", tip)
    for at_s in probes.failed_s:
        tip = f"probe at {at_s:.0f} s: no answer"
        panel.draw_mark(Point(at_s, y.scale.high), Shape.CROSS, "s2", tip)


def _plot_server(timeline: Timeline) -> Plot:
    running, waiting = timeline.running, timeline.waiting
    told = [*(running.largest if running else ()), *(waiting.largest if waiting else ())]
    panel = _open(
        timeline,
        plan_linear(0.0, max([*told, 1.0]), format_tick, ticks=4),
        "Requests running and waiting on all instances, as the server told",
    )
    for series, css in ((running, "s0"), (waiting, "s1")):
        if series is not None:
            panel.draw_curve(Curve(series.middles_s, series.largest), css)
    return Plot(
        title="Running and waiting, as the server told",
        svg=panel.render(),
        caption="All instances together, the largest of each stretch.",
        legend=(LegendEntry("s0", "running"), LegendEntry("s1", "waiting")),
        width=Width.FULL,
    )


def _tabulate(timeline: Timeline) -> NumberTable:
    """A coarser view of all strips: a long run has more bins than a table has readers."""
    bins = timeline.bins
    step = -(-bins.count // MAX_TABLE_ROWS)
    rows = []
    for first in range(0, bins.count, step):
        last = min(first + step, bins.count)
        start_s, end_s = (bins.start_s + bins.width_s * i for i in (first, last))
        missed = (sum(timeline.missed[cause][first:last]) for cause in CAUSES)
        counts = (sum(timeline.offered[first:last]), sum(timeline.finished[first:last]), *missed)
        slowest_s = _find_largest(timeline.ttft_s, start_s, end_s)
        name = f"{_format_second(start_s)}–{_format_second(end_s)}"
        rows.append((name, *map(format_count, counts), format_duration(slowest_s)))
    words = (CAUSE_WORDS[cause] for cause in CAUSES)
    header = ("time", "offered", "finished", *(f"missed: {w}" for w in words), "slowest TTFT")
    return NumberTable("Timeline", header, tuple(rows))


def _find_largest(summary: BinSummary, start_s: float, end_s: float) -> float | None:
    pairs: Sequence[tuple[float, float]] = tuple(
        zip(summary.middles_s, summary.largest, strict=True)
    )
    return max((value for at_s, value in pairs if start_s <= at_s < end_s), default=None)


def _format_second(at_s: float) -> str:
    return f"{at_s:,.0f} s"
