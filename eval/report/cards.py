"""The few figures that stand at the top of a page, and what must be known before reading them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bana.eval.report.naming import name_run
from bana.eval.report.numbers import (
    NOTHING,
    format_count,
    format_duration,
    format_figure,
    format_interval,
    format_percent,
    format_rate,
    format_round_share,
    format_share,
)
from bana.eval.report.records import ReportInput, StoredRun
from bana.eval.report.text import clean_text
from bana.eval.requests import Ending
from bana.eval.summary import Distribution, MaxRate, Summary

MAX_REASONS = 8


class CardFigure(msgspec.Struct, frozen=True):
    """A large figure; `name` tells it from its neighbour."""

    value: str
    name: str = ""


class Card(msgspec.Struct, frozen=True):
    """One or two figures and the line below them."""

    label: str
    figures: tuple[CardFigure, ...]
    detail: str = ""


class Tone(msgspec.Struct, frozen=True):
    """How loudly a banner speaks: its class on the page, and its sign for those without colour."""

    css: str
    sign: str


BAD = Tone("bad", "✕")
WARN = Tone("warn", "!")


class Banner(msgspec.Struct, frozen=True):
    """What must be known before any figure is believed."""

    tone: Tone
    title: str
    reasons: tuple[str, ...] = ()


def list_banners(report: ReportInput) -> tuple[Banner, ...]:
    """Runs that are not valid or were interrupted."""
    if len(report.runs) == 1:
        return _warn_of_run(report.runs[0].summary)
    invalid = [s for s in report.runs if not s.summary.validity.is_valid]
    cut = [s for s in report.runs if s.summary.is_interrupted]
    total, banners = len(report.runs), []
    if invalid:
        reasons = dict.fromkeys(r for s in invalid for r in s.summary.validity.reasons)
        title = f"Not valid, proving nothing: {len(invalid)} of {total} runs"
        banners.append(Banner(BAD, title, _bound(reasons)))
    if cut:
        banners.append(Banner(WARN, f"Interrupted: {len(cut)} of {total} runs"))
    return tuple(banners)


def _warn_of_run(summary: Summary) -> tuple[Banner, ...]:
    banners = []
    if not summary.validity.is_valid:
        title = "This run is not valid: its figures prove nothing"
        banners.append(Banner(BAD, title, _bound(dict.fromkeys(summary.validity.reasons))))
    if summary.is_interrupted:
        title = "This run was interrupted: only a part of the schedule was offered"
        banners.append(Banner(WARN, title))
    return tuple(banners)


def _bound(reasons: Mapping[str, None]) -> tuple[str, ...]:
    shown = [clean_text(reason) for reason in list(reasons)[:MAX_REASONS]]
    left_out = len(reasons) - len(shown)
    return (*shown, *([f"and {left_out} more reasons"] if left_out > 0 else []))


def list_cards(report: ReportInput) -> tuple[Card, ...]:
    """The key figures: of the run, or of the max rates with the run behind them."""
    if len(report.runs) == 1 and not report.max_rates:
        return list_run_cards(report.runs[0].summary)
    rates = tuple(_card_rate(name, rate) for name, rate in sorted(report.max_rates.items())[:4])
    valid = [s for s in report.runs if s.summary.validity.is_valid]
    counted = Card(
        "Runs",
        (CardFigure(format_count(len(report.runs))),),
        f"{len(valid)} valid, {_range_rates(report)}",
    )
    best = find_best(report)
    # With two max rates the cards fill their rows without it.
    middle = () if len(rates) == 2 else (counted,)
    return (*rates, *middle, *(_card_best(best) if best is not None else ()))


def _card_best(stored: StoredRun) -> tuple[Card, ...]:
    return tuple(
        msgspec.structs.replace(card, label=f"{card.label}, {name_run(stored)}")
        for card in list_run_cards(stored.summary)[:4]
    )


def find_best(report: ReportInput) -> StoredRun | None:
    """The valid run with the highest goodput: beyond it, more load brings less."""
    valid = [s for s in report.runs if s.summary.validity.is_valid]
    return max(valid, key=lambda s: s.summary.overall.goodput_rps.value, default=None)


def _range_rates(report: ReportInput) -> str:
    rates = [s.summary.offered_rps for s in report.runs]
    return f"{format_figure(min(rates))}–{format_figure(max(rates))}/s offered" if rates else ""


def _card_rate(name: str, rate: MaxRate) -> Card:
    label = f"Max rate {clean_text(name, 24)}".strip()
    value = NOTHING if rate.rps is None else format_rate(rate.rps)
    detail = f"at {format_round_share(rate.target)} attainment"
    return Card(label, (CardFigure(value),), detail if rate.rps else f"not found {detail}")


def list_run_cards(summary: Summary) -> tuple[Card, ...]:
    """Goodput, attainment, TTFT, TPOT, what was offered, and the client's own lateness."""
    overall, found = summary.overall, summary.overall.latencies
    goodput, attained = overall.goodput_rps, overall.attainment
    return (
        Card(
            "Goodput",
            (CardFigure(format_rate(goodput.value)),),
            f"{format_interval(goodput, format_figure)} of {format_rate(summary.offered_rps)} "
            "offered",
        ),
        Card(
            "Attainment",
            (CardFigure(format_share(attained.value)),),
            f"{format_interval(attained, format_percent)}; {overall.met:,} of {overall.offered:,}",
        ),
        _card_latency("TTFT", found.ttft_s),
        _card_latency("TPOT", found.tpot_s),
        Card(
            "Finished",
            (CardFigure(format_count(overall.endings.get(Ending.FINISHED, 0))),),
            f"of {overall.offered:,} offered in {format_duration(summary.window_s)}",
        ),
        _card_lateness(summary.lateness_s),
    )


def _card_latency(label: str, latency: Distribution | None) -> Card:
    if latency is None:
        return Card(label, (CardFigure(NOTHING),), "no request has it")
    figures = (
        CardFigure(format_duration(latency.p50), "p50"),
        CardFigure(format_duration(latency.p99), "p99"),
    )
    return Card(label, figures, f"largest {format_duration(latency.largest)}")


def _card_lateness(lateness: Distribution | None) -> Card:
    if lateness is None:
        return Card("Lateness of the client", (CardFigure(NOTHING),), "nothing was sent")
    return Card(
        "Lateness of the client",
        (CardFigure(format_duration(lateness.p99), "p99"),),
        f"largest {format_duration(lateness.largest)}",
    )
