"""The figures of one summary as named rows, for a terminal and for a page alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bana.eval.report.numbers import (
    NOTHING,
    format_count,
    format_duration,
    format_figure,
    format_ms,
    format_rate,
    format_rate_spread,
    format_share,
    format_share_spread,
    format_tick,
)
from bana.eval.report.records import NumberTable, Origin
from bana.eval.report.text import clean_text, redact_settings, redact_url
from bana.eval.requests import Ending
from bana.eval.summary import Dimension, Distribution, Group, Summary

MAX_GROUPS = 16
MAX_FACTS = 60
MAX_NAME = 40
LATENCY_HEADER = ("ms", "count", "mean", "p50", "p90", "p95", "p99", "largest")
MISS_WORDS = {
    Dimension.TTFT: "missed TTFT",
    Dimension.TPOT: "missed TPOT",
    Dimension.E2E: "missed E2E",
    Dimension.NO_ANSWER: "no answer",
}


def tabulate_attainment(summary: Summary) -> NumberTable:
    """Attainment and misses: all, each class, each quartile of prompt length."""
    classes = summary.classes if len(summary.classes) > 1 else ()
    return tabulate_groups("Attainment", (summary.overall, *classes, *summary.quartiles))


def tabulate_groups(title: str, groups: Sequence[Group]) -> NumberTable:
    """What was offered to each group, and what it attained and missed."""
    limited = [d for d in Dimension if any(d in g.missed for g in groups)]
    header = ("group", "offered", "met", "attainment", "goodput", *(MISS_WORDS[d] for d in limited))
    left_out = len(groups) - MAX_GROUPS
    return NumberTable(
        title,
        header,
        tuple(_list_group(group, limited) for group in groups[:MAX_GROUPS]),
        f"{left_out} more groups are not listed." if left_out > 0 else "",
    )


def _list_group(group: Group, limited: Sequence[Dimension]) -> tuple[str, ...]:
    missed = (group.missed.get(d) for d in limited)
    return (
        clean_text(group.name, MAX_NAME),
        format_count(group.offered),
        format_count(group.met),
        format_share_spread(group.attainment),
        format_rate_spread(group.goodput_rps),
        *(NOTHING if count is None else format_count(count) for count in missed),
    )


def tabulate_latencies(summary: Summary) -> NumberTable:
    """Every latency of the run, in milliseconds."""
    found = summary.overall.latencies
    rows = {
        "TTFT": found.ttft_s,
        "TTFT from the send": found.ttft_from_send_s,
        "TPOT": found.tpot_s,
        "ITL": found.itl_s,
        "E2E": found.e2e_s,
        "E2E from the send": found.e2e_from_send_s,
        "lateness of the client": summary.lateness_s,
        "TTFT of probes": summary.probe_ttft_s,
    }
    known = ((name, d) for name, d in rows.items() if d is not None)
    return NumberTable("Latency", LATENCY_HEADER, tuple(list_latency(name, d) for name, d in known))


def list_latency(name: str, latency: Distribution | None) -> tuple[str, ...]:
    """Count, mean, percentiles and largest, in milliseconds."""
    if latency is None:
        return (name, "0", *(NOTHING,) * 6)
    d = latency
    figures_s = (d.mean, d.p50, d.p90, d.p95, d.p99, d.largest)
    return (name, format_count(d.count), *map(format_ms, figures_s))


def tabulate_run(summary: Summary) -> NumberTable:
    """How the run went, besides attainment and latency."""
    rows = {
        "offered": f"{format_rate(summary.offered_rps)} for {format_duration(summary.window_s)}",
        "arrival CV": _or_nothing(summary.arrival_cv),
        "input": f"{format_figure(summary.input_tokens_per_s)} tokens/s",
        "output": f"{format_figure(summary.output_tokens_per_s)} tokens/s",
        "endings": describe_endings(summary.overall.endings),
        "prompt tokens from a cache": format_share(summary.cached_share),
        "Jain index": _or_nothing(summary.jain_index),
        "worst class": clean_text(summary.worst_class or NOTHING, MAX_NAME),
        "probes without an answer": format_count(summary.probes_failed),
        **_list_balance(summary),
    }
    return NumberTable("Run", ("", ""), tuple(rows.items()))


def _or_nothing(value: float | None) -> str:
    return NOTHING if value is None else format_figure(value)


def describe_endings(endings: Mapping[Ending, int]) -> str:
    """How the requests ended, without those ways in which none did."""
    return ", ".join(f"{count:,} {ending}" for ending, count in endings.items() if count) or NOTHING


def _list_balance(summary: Summary) -> dict[str, str]:
    balance = summary.balance
    if balance is None:
        return {}
    return {
        "instances": format_count(balance.instances),
        "running, waiting (mean)": f"{format_figure(balance.mean_running)}, "
        f"{format_figure(balance.mean_waiting)}",
        "waiting (largest)": format_figure(balance.largest_waiting),
        "balance (largest over mean)": format_figure(balance.max_over_mean),
    }


def tabulate_settings(summary: Summary, origin: Origin) -> NumberTable:
    """What was asked of whom; credentials are hidden."""
    started = origin.started_at.isoformat(" ", "seconds") if origin.started_at else NOTHING
    fixed: dict[str, object] = {
        "target": redact_url(summary.target),
        "started": started,
        "seed": summary.seed,
        "workload fingerprint": summary.fingerprint,
        "window_s": summary.window_s,
        "duration_s": summary.duration_s,
    }
    return _tabulate_facts("Settings", {**fixed, **redact_settings(origin.settings)})


def tabulate_workload(summary: Summary) -> NumberTable:
    """What the workload is made of."""
    return _tabulate_facts("Workload", redact_settings(summary.workload))


def _tabulate_facts(title: str, facts: Mapping[str, object]) -> NumberTable:
    rows = ((clean_text(name, MAX_NAME), _say(value)) for name, value in facts.items())
    left_out = len(facts) - MAX_FACTS
    note = f"{left_out} more are in summary.json." if left_out > 0 else ""
    return NumberTable(title, ("", ""), tuple(rows)[:MAX_FACTS], note)


def _say(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: NOTHING}[value]
    if isinstance(value, float):
        return format_tick(value)
    if isinstance(value, Mapping):
        return clean_text(", ".join(f"{name} {_say(inner)}" for name, inner in value.items()))
    if isinstance(value, list | tuple):
        return clean_text(", ".join(map(_say, value)))
    return clean_text(str(value))
