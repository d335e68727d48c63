"""Latency distributions: what share of the requests was at most that slow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from bana.eval.distributions import (
    measure_e2e_from_send_s,
    measure_e2e_s,
    measure_gaps_s,
    measure_tpot_s,
    measure_ttft_from_send_s,
    measure_ttft_s,
)
from bana.eval.report.curves import Curve, trace_ecdf
from bana.eval.report.marks import SERIES_SHAPES
from bana.eval.report.numbers import format_duration, format_round, format_round_share
from bana.eval.report.panel import HALF, ROW_HEIGHT, Panel, open_panel
from bana.eval.report.plot import MAX_SERIES, SERIES_CSS, LegendEntry, Plot
from bana.eval.report.records import NumberTable, StoredRun
from bana.eval.report.scale import plan_linear, plan_log
from bana.eval.report.svg import Point
from bana.eval.report.text import clean_text
from bana.eval.report.words import LATENCY_HEADER, list_latency
from bana.eval.requests import Limits, Observed
from bana.eval.runs import select_window
from bana.eval.summary import Distribution, Group, Latencies, Summary

Measure = Callable[[Observed], float | None]


class Quantity(msgspec.Struct, frozen=True):
    """One latency: how to take it from a request, and where its limit and summary are found."""

    title: str
    values: Callable[[Sequence[Observed]], Sequence[float]]
    described: Callable[[Latencies], Distribution | None]
    limit: Callable[[Limits], float | None] | None = None
    from_send: Quantity | None = None
    caption: str = ""


class Series(msgspec.Struct, frozen=True):
    """The requests of one class, and how they are drawn."""

    name: str
    css: str
    index: int
    requests: tuple[Observed, ...]


class Drawn(msgspec.Struct, frozen=True):
    """The curves and percentiles of one series; `limit_s` where all its requests have the same."""

    series: Series
    curve: Curve | None
    from_send: Curve | None
    limit_s: float | None
    described: Distribution | None


def plot_latencies(stored: StoredRun) -> tuple[Plot, ...]:
    """TTFT, TPOT, ITL and E2E of the window, a curve for each class."""
    series = split_series(select_window(stored.record.run))
    drawn = ((quantity, _trace(quantity, series, stored.summary)) for quantity in QUANTITIES)
    return tuple(
        _plot(quantity, curves, stored)
        for quantity, curves in drawn
        if any(d.curve is not None for d in curves)
    )


def split_series(observed: Sequence[Observed]) -> tuple[Series, ...]:
    """One series a class; all in one where there are more classes than colours."""
    names = sorted({o.slo_class for o in observed})
    if not 1 < len(names) <= MAX_SERIES:
        return (Series("all requests", SERIES_CSS[0], 0, tuple(observed)),)
    return tuple(
        Series(name, SERIES_CSS[i], i, tuple(o for o in observed if o.slo_class == name))
        for i, name in enumerate(names)
    )


def _trace(quantity: Quantity, series: Sequence[Series], summary: Summary) -> tuple[Drawn, ...]:
    sent = quantity.from_send
    return tuple(
        Drawn(
            series=s,
            curve=trace_ecdf(quantity.values(s.requests)),
            from_send=None if sent is None else trace_ecdf(sent.values(s.requests)),
            limit_s=None if quantity.limit is None else _agree(quantity.limit, s.requests),
            described=quantity.described(_find_group(s, summary).latencies),
        )
        for s in series
    )


def _find_group(series: Series, summary: Summary) -> Group:
    named = (group for group in summary.classes if group.name == series.name)
    return next(named, summary.overall)


def _agree(limit: Callable[[Limits], float | None], requests: Sequence[Observed]) -> float | None:
    """The limit that all of them have, None where they differ or one has none."""
    limits_s = {limit(o.limits) for o in requests}
    return limits_s.pop() if len(limits_s) == 1 else None


def _plot(quantity: Quantity, drawn: Sequence[Drawn], stored: StoredRun) -> Plot:
    limited = [d for d in drawn if d.limit_s is not None]
    raised = max(len(limited) - 1, 0) * ROW_HEIGHT
    frame = msgspec.structs.replace(HALF, top=HALF.top + raised, height=HALF.height + raised)
    x = plan_log(list(_list_extremes(drawn)), format_round)
    y = plan_linear(0.0, 1.0, format_round_share)
    panel = open_panel(frame, x, y, f"{quantity.title}: share of requests at most that slow")
    for row, d in enumerate(limited):
        _draw_limit(panel, d, row)
    for d in drawn:
        _draw(panel, d)
    return Plot(
        title=quantity.title,
        svg=panel.render(),
        caption=quantity.caption,
        legend=_explain(quantity, drawn),
        table=_tabulate(quantity, stored),
    )


def _list_extremes(drawn: Sequence[Drawn]) -> Iterator[float]:
    for d in drawn:
        for curve in (d.curve, d.from_send):
            if curve is not None:
                # The fastest hundredth would stretch the axis and is nobody's concern.
                yield next(x for x, y in zip(curve.xs, curve.ys, strict=True) if y >= 0.01)
                yield curve.xs[-1]
        if d.limit_s is not None:
            yield d.limit_s


def _draw_limit(panel: Panel, drawn: Drawn, row: int) -> None:
    if drawn.limit_s is not None:
        text = f"limit {format_round(drawn.limit_s)}"
        panel.draw_upright(drawn.limit_s, text, drawn.series.css, row)


def _draw(panel: Panel, drawn: Drawn) -> None:
    css, name = drawn.series.css, drawn.series.name
    if drawn.from_send is not None:
        panel.draw_curve(drawn.from_send, f"{css} sent")
    if drawn.curve is not None:
        panel.draw_curve(drawn.curve, css)
    if drawn.described is not None:
        d = drawn.described
        for share, at_s in ((0.5, d.p50), (0.9, d.p90), (0.99, d.p99)):
            tip = f"{name}, p{share * 100:.0f}: {format_duration(at_s)}"
            panel.draw_mark(Point(at_s, share), SERIES_SHAPES[drawn.series.index], css, tip)


def _explain(quantity: Quantity, drawn: Sequence[Drawn]) -> tuple[LegendEntry, ...]:
    entries = [LegendEntry(d.series.css, d.series.name) for d in drawn]
    if quantity.from_send is not None:
        entries.append(LegendEntry("sent ink", "counted from the send"))
    return tuple(entries)


def _tabulate(quantity: Quantity, stored: StoredRun) -> NumberTable:
    summary = stored.summary
    groups = (
        [summary.overall, *summary.classes[:MAX_SERIES]]
        if len(summary.classes) > 1
        else [summary.overall]
    )
    rows = [list_latency(clean_text(g.name, 40), quantity.described(g.latencies)) for g in groups]
    sent = quantity.from_send
    if sent is not None:
        rows.append(list_latency("all, from the send", sent.described(summary.overall.latencies)))
    return NumberTable(quantity.title, LATENCY_HEADER, tuple(rows))


def _each(measure: Measure) -> Callable[[Sequence[Observed]], Sequence[float]]:
    def measure_all(requests: Sequence[Observed]) -> Sequence[float]:
        return [value_s for value_s in map(measure, requests) if value_s is not None]

    return measure_all


def _list_gaps(requests: Sequence[Observed]) -> Sequence[float]:
    gaps_s = [measure_gaps_s(o) for o in requests]
    return np.concatenate(gaps_s).tolist() if gaps_s else []


QUANTITIES = (
    Quantity(
        title="TTFT, time to first token",
        values=_each(measure_ttft_s),
        described=lambda latencies: latencies.ttft_s,
        limit=lambda limits: limits.ttft_s,
        from_send=Quantity(
            title="TTFT from the send",
            values=_each(measure_ttft_from_send_s),
            described=lambda latencies: latencies.ttft_from_send_s,
        ),
        caption="Where the dotted curve parts, requests left late.",
    ),
    Quantity(
        title="TPOT, time per output token",
        values=_each(measure_tpot_s),
        described=lambda latencies: latencies.tpot_s,
        limit=lambda limits: limits.tpot_s,
        caption="After the first token, one value a request.",
    ),
    Quantity(
        title="ITL, gaps between tokens",
        values=_list_gaps,
        described=lambda latencies: latencies.itl_s,
        caption="Every single gap: stalls show here before they show in TPOT.",
    ),
    Quantity(
        title="E2E, the whole answer",
        values=_each(measure_e2e_s),
        described=lambda latencies: latencies.e2e_s,
        limit=lambda limits: limits.e2e_s,
        from_send=Quantity(
            title="E2E from the send",
            values=_each(measure_e2e_from_send_s),
            described=lambda latencies: latencies.e2e_from_send_s,
        ),
        caption="Of those that finished.",
    ),
)
