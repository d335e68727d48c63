"""How groups of one run fared beside each other: classes and quartiles of prompt length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from bana.eval.judging import judge
from bana.eval.report.marks import Shape
from bana.eval.report.numbers import (
    format_count,
    format_duration,
    format_round,
    format_round_share,
    format_share,
    format_share_spread,
)
from bana.eval.report.panel import Frame, Panel, open_panel
from bana.eval.report.plot import LegendEntry, Plot
from bana.eval.report.plot_timeline import CAUSE_CSS, CAUSE_WORDS, explain_causes
from bana.eval.report.records import NumberTable, StoredRun
from bana.eval.report.scale import Axis, Scale, Tick, plan_linear, plan_log
from bana.eval.report.svg import Point
from bana.eval.report.text import clean_text
from bana.eval.report.timeline import CAUSES, pick_cause
from bana.eval.requests import Observed
from bana.eval.runs import select_window
from bana.eval.summary import Dimension, Group, Summary

MAX_GROUPS = 8
MAX_NAME = 22
ROW_HEIGHT = 34.0
HALF_ROW = 0.28


class Rows(msgspec.Struct, frozen=True):
    """The groups that a plot shows from top to bottom."""

    title: str
    groups: tuple[Group, ...]

    def place(self, index: int) -> float:
        """Where a row lies on the axis, the first one on top."""
        return len(self.groups) - 1.0 - index


def plot_attainment(summary: Summary) -> tuple[Plot, ...]:
    """Attainment with its interval, of all and of each class, then by prompt length."""
    classes = Rows("Attainment, all and by class", list_classes(summary))
    quartiles = Rows("Attainment, by prompt length", summary.quartiles[:MAX_GROUPS])
    shown = [rows for rows in (classes, quartiles) if rows.groups]
    low = min(g.attainment.low for rows in shown for g in rows.groups)
    return tuple(_plot_attainment(rows, low, summary.overall) for rows in shown)


def plot_fairness(stored: StoredRun) -> tuple[Plot, ...]:
    """What became of the requests of each group, and how long each waited."""
    summary = stored.summary
    room = MAX_GROUPS - min(len(summary.quartiles), 4)
    rows = Rows("", (*list_classes(summary)[:room], *summary.quartiles[:4]))
    return (_plot_outcomes(rows, stored), _plot_waits(rows))


def list_classes(summary: Summary) -> tuple[Group, ...]:
    """All requests, then the largest classes where there are several, by name."""
    if len(summary.classes) < 2:
        return (summary.overall,)
    largest = sorted(summary.classes, key=lambda g: -g.offered)[: MAX_GROUPS - 1]
    return (summary.overall, *sorted(largest, key=lambda g: g.name))


def _open_rows(rows: Rows, x: Axis, label: str) -> Panel:
    count = len(rows.groups)
    frame = Frame(height=58.0 + ROW_HEIGHT * count, left=176.0)
    ticks = tuple(
        Tick(rows.place(i), clean_text(g.name, MAX_NAME)) for i, g in enumerate(rows.groups)
    )
    y = Axis(Scale(-0.5, count - 0.5), ticks)
    return open_panel(frame, x, y, label)


def _plot_attainment(rows: Rows, low: float, overall: Group) -> Plot:
    x = plan_linear(max(0.0, min(low, 0.95)), 1.0, format_round_share, ticks=4)
    panel = _open_rows(rows, x, f"{rows.title}, with 95 % intervals")
    panel.draw_upright(overall.attainment.value, "all", "muted")
    for i, group in enumerate(rows.groups):
        y, spread = rows.place(i), group.attainment
        panel.draw_interval(Point(spread.low, y), Point(spread.high, y), "s0")
        tip = f"{group.name}: {format_share_spread(spread)} of {group.offered:,}"
        panel.draw_mark(Point(spread.value, y), Shape.CIRCLE, "s0", tip)
    return Plot(
        title=rows.title,
        svg=panel.render(),
        legend=(LegendEntry("s0", "share that met all its limits, with its 95 % interval"),),
    )


def _plot_outcomes(rows: Rows, stored: StoredRun) -> Plot:
    observed = select_window(stored.record.run)
    outcomes = [_count_outcomes(_select(g, stored.summary, observed)) for g in rows.groups]
    caused = [cause for cause in CAUSES if any(counts.get(cause) for counts in outcomes)]
    x = plan_linear(0.0, 1.0, format_round_share, ticks=4)
    panel = _open_rows(rows, x, "What became of the requests of each group")
    for i, (group, counts) in enumerate(zip(rows.groups, outcomes, strict=True)):
        _stack(panel, rows.place(i), group, counts)
    header = ("group", "met", *(CAUSE_WORDS[cause] for cause in CAUSES))
    return Plot(
        title="What became of the requests",
        svg=panel.render(),
        caption="Each request once, by its first cause.",
        legend=(LegendEntry("met", "met all limits"), *explain_causes(caused)),
        table=NumberTable(
            "What became of the requests", header, tuple(map(_list_outcomes, rows.groups, outcomes))
        ),
    )


def _list_outcomes(group: Group, counts: Mapping[Dimension | None, int]) -> tuple[str, ...]:
    kinds = (None, *CAUSES)
    return (clean_text(group.name, 40), *(format_count(counts.get(kind, 0)) for kind in kinds))


def _stack(panel: Panel, y: float, group: Group, counts: Mapping[Dimension | None, int]) -> None:
    total, seen = sum(counts.values()), 0
    for kind in (None, *CAUSES):
        count = counts.get(kind, 0)
        if count:
            word, css = ("met", "met") if kind is None else (CAUSE_WORDS[kind], CAUSE_CSS[kind])
            low = Point(seen / total, y - HALF_ROW)
            high = Point((seen + count) / total, y + HALF_ROW)
            tip = f"{group.name}, {word}: {count:,} of {total:,} ({format_share(count / total)})"
            panel.fill_box(low, high, css, tip)
        seen += count


def _select(group: Group, summary: Summary, observed: Sequence[Observed]) -> Sequence[Observed]:
    if group is summary.overall:
        return observed
    if any(group is quartile for quartile in summary.quartiles):
        low, high = group.prompt_tokens_low, group.prompt_tokens_high
        return [o for o in observed if low <= o.prompt_tokens <= high]
    return [o for o in observed if o.slo_class == group.name]


def _count_outcomes(observed: Sequence[Observed]) -> Mapping[Dimension | None, int]:
    return Counter(pick_cause(judge(o)) for o in observed)


def _plot_waits(rows: Rows) -> Plot:
    known = [(i, g, g.latencies.ttft_s) for i, g in enumerate(rows.groups)]
    ends = [at for _, _, d in known if d is not None for at in (d.p50, d.p99)]
    x = plan_log(ends, format_round)
    panel = _open_rows(rows, x, "TTFT of each group: median and p99")
    for i, group, d in known:
        if d is None:
            continue
        y = rows.place(i)
        panel.draw_interval(Point(d.p50, y), Point(d.p99, y), "s0")
        for at_s, word, shape in ((d.p50, "p50", Shape.CIRCLE), (d.p99, "p99", Shape.DIAMOND)):
            tip = f"{group.name}, {word}: {format_duration(at_s)}"
            panel.draw_mark(Point(at_s, y), shape, "s0", tip)
    return Plot(
        title="TTFT, median to p99",
        svg=panel.render(),
        caption="Circle: median; diamond: p99, of those that got a first token.",
        table=NumberTable(
            "TTFT by group",
            ("group", "p50", "p99"),
            tuple(
                (
                    clean_text(g.name, 40),
                    format_duration(d.p50 if d else None),
                    format_duration(d.p99 if d else None),
                )
                for _, g, d in known
            ),
        ),
    )
