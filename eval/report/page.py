"""The one page that a person reads first: no network, no script, the same in ten years.

sentence ▸ warnings ▸ key figures ▸ load ▸ comparison ▸ latency, timeline, fairness, failures
▸ workload and settings ▸ definitions
"""

from __future__ import annotations

from importlib.resources import files

import msgspec

from bana.eval.report.cards import Banner, Card, find_best, list_banners, list_cards
from bana.eval.report.definitions import DEFINITIONS
from bana.eval.report.failures import tally_failures
from bana.eval.report.naming import name_run
from bana.eval.report.numbers import format_count, format_figure
from bana.eval.report.plot import Plot
from bana.eval.report.plot_compare import plot_comparisons
from bana.eval.report.plot_groups import plot_attainment, plot_fairness
from bana.eval.report.plot_latency import plot_latencies
from bana.eval.report.plot_load import plot_load, tabulate_runs
from bana.eval.report.plot_timeline import plot_timeline
from bana.eval.report.records import NumberTable, ReportInput, StoredRun
from bana.eval.report.sentence import choose_sentence, name_ratio
from bana.eval.report.text import clean_text, redact_url
from bana.eval.report.words import (
    tabulate_attainment,
    tabulate_latencies,
    tabulate_run,
    tabulate_settings,
    tabulate_workload,
)
from bana.eval.runs import select_window
from bana.eval.summary import Summary
from bana.slo.errors import ConfigError

MAX_DETAILED_RUNS = 5
MAX_SENTENCE = 600


class Section(msgspec.Struct, frozen=True):
    """A part of the page; `anchor` is what the page's index points to."""

    anchor: str
    title: str
    lead: str = ""
    plots: tuple[Plot, ...] = ()
    tables: tuple[NumberTable, ...] = ()


class RunBlock(msgspec.Struct, frozen=True):
    """The parts of one run among several, folded away but for one."""

    title: str
    is_open: bool
    sections: tuple[Section, ...]


class Page(msgspec.Struct, frozen=True):
    """Everything that the template writes."""

    title: str
    about: str
    sentence: str
    banners: tuple[Banner, ...]
    cards: tuple[Card, ...]
    sections: tuple[Section, ...]
    runs: tuple[RunBlock, ...]
    runs_note: str
    closing: tuple[Section, ...]


def render_page(report: ReportInput) -> str:
    """The page of a report: under 500 kB, whatever the number of requests and runs."""
    from jinja2 import Environment, StrictUndefined

    if not report.runs:
        raise ConfigError("a report of 0 runs, allowed: 1 or more; measure a run first")
    folder = files("bana.eval.report")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((folder / "page.html.j2").read_text("utf-8"))
    style = (folder / "page.css").read_text("utf-8")
    return template.render(page=compose_page(report), style=style, definitions=DEFINITIONS)


def compose_page(report: ReportInput) -> Page:
    """What the page says, in the order in which it is read."""
    first = report.runs[0]
    is_single = len(report.runs) == 1
    sections = _list_run_sections(first, "") if is_single else _list_load_sections(report)
    return Page(
        title=_name_page(report),
        about=_describe(report),
        sentence=clean_text(choose_sentence(report), MAX_SENTENCE),
        banners=list_banners(report),
        cards=list_cards(report),
        sections=sections,
        runs=() if is_single else _list_blocks(report),
        runs_note="" if is_single else _note_blocks(report),
        closing=_list_closing(report),
    )


def _name_page(report: ReportInput) -> str:
    if len(report.runs) == 1:
        return f"bana load run, {name_run(report.runs[0])}"
    return f"bana load grid, {len(report.runs)} runs"


def _describe(report: ReportInput) -> str:
    summaries = [stored.summary for stored in report.runs]
    targets = dict.fromkeys(clean_text(redact_url(s.target), 80) for s in summaries)
    started = [s.origin.started_at for s in report.runs if s.origin.started_at is not None]
    words = ["Load run" if len(summaries) == 1 else f"{len(summaries)} load runs"]
    words.append(", ".join(list(targets)[:3]))
    if started:
        words.append(min(started).strftime("%Y-%m-%d %H:%M %Z").strip())
    return " · ".join(words)


def _list_load_sections(report: ReportInput) -> tuple[Section, ...]:
    load = Section(
        anchor="load",
        title="Attainment against load",
        lead="Where the share of requests that meet all their limits falls below the target.",
        plots=plot_load(report),
        tables=(tabulate_runs(report.runs),),
    )
    if not report.comparisons:
        return (load,)
    compared = Section(
        anchor="comparison",
        title="Comparison",
        lead="The same requests offered to both, in alternating order.",
        plots=(plot_comparisons(report.comparisons, name_ratio(report)),),
    )
    return (compared, load)


def _list_blocks(report: ReportInput) -> tuple[RunBlock, ...]:
    shown, best = _select_detailed(report), find_best(report)
    return tuple(
        RunBlock(name_run(stored), stored is best, _list_block_sections(stored, f"run{i}-"))
        for i, stored in enumerate(shown)
    )


def _list_block_sections(stored: StoredRun, prefix: str) -> tuple[Section, ...]:
    figures = Section(f"{prefix}figures", "Run", tables=(tabulate_run(stored.summary),))
    return (*_list_run_sections(stored, prefix), figures)


def _select_detailed(report: ReportInput) -> tuple[StoredRun, ...]:
    """The runs whose details are shown: those nearest to the best one, by offered rate."""
    best = find_best(report) or report.runs[0]
    rate_rps = best.summary.offered_rps
    nearest = sorted(report.runs, key=lambda s: abs(s.summary.offered_rps - rate_rps))
    shown = nearest[:MAX_DETAILED_RUNS]
    return tuple(sorted(shown, key=lambda s: (s.summary.offered_rps, s.origin.side)))


def _note_blocks(report: ReportInput) -> str:
    left_out = len(report.runs) - MAX_DETAILED_RUNS
    if left_out <= 0:
        return ""
    return f"Details of {left_out} more runs are in the pages of their own folders."


def _list_run_sections(stored: StoredRun, prefix: str) -> tuple[Section, ...]:
    summary = stored.summary
    return (
        Section(
            anchor=f"{prefix}attainment",
            title="Attainment",
            lead="The share of requests that met all their limits, and how sure one run can be.",
            plots=plot_attainment(summary),
            tables=(tabulate_attainment(summary),),
        ),
        Section(
            anchor=f"{prefix}latency",
            title="Latency",
            lead="Share of requests at most that slow; marks at p50, p90 and p99.",
            plots=plot_latencies(stored),
            tables=(tabulate_latencies(summary),),
        ),
        Section(
            anchor=f"{prefix}timeline",
            title="Timeline",
            lead="The same seconds in every strip.",
            plots=plot_timeline(stored),
        ),
        Section(
            anchor=f"{prefix}fairness",
            title="Fairness",
            lead=_say_fairness(summary),
            plots=plot_fairness(stored),
        ),
        _list_failures(stored, prefix),
    )


def _say_fairness(summary: Summary) -> str:
    if summary.jain_index is None:
        return "There are no groups to compare."
    parts = "classes" if len(summary.classes) > 1 else "quartiles of prompt length"
    worst = "" if summary.worst_class is None else f" Worst class: {summary.worst_class}."
    index = format_figure(summary.jain_index)
    return clean_text(f"Jain index {index} over {parts} (1 is alike).{worst}")


def _list_failures(stored: StoredRun, prefix: str) -> Section:
    tally = tally_failures(select_window(stored.record.run))
    rows = tuple(
        (
            c.failure.ending.value,
            "" if c.failure.status is None else str(c.failure.status),
            c.failure.code,
            c.failure.error,
            format_count(c.count),
        )
        for c in tally.kinds
    )
    note = ""
    if tally.further_kinds:
        note = (
            f"{tally.further_kinds:,} more kinds, {tally.further_requests:,} requests, not listed."
        )
    header = ("ended", "status", "code", "what was said", "requests")
    return Section(
        anchor=f"{prefix}failures",
        title="Failures",
        lead="" if rows else "Every request of the window had a whole answer.",
        tables=(NumberTable("Failures by kind", header, rows, note),) if rows else (),
    )


def _list_closing(report: ReportInput) -> tuple[Section, ...]:
    first = report.runs[0]
    asked = (tabulate_workload(first.summary), tabulate_settings(first.summary, first.origin))
    if len(report.runs) > 1:
        lead = f"Of the run {name_run(first)}."
        return (Section("settings", "Workload and settings", lead, tables=asked),)
    tables = (tabulate_run(first.summary), *asked)
    return (Section("settings", "Run, workload and settings", tables=tables),)
