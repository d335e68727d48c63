"""What the prefix index carries, as a part of `bana eval bench store`: `index`, in a process apart.

It takes 2 GB at the aimed size, which are given back with the process.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bana.eval.bench.apart import run_apart
from bana.eval.bench.harness import Session
from bana.eval.bench.index import IndexSettings, list_figures
from bana.eval.bench.trials import Values
from bana.slo.figures import BenchReport, Figure, judge_figure

MODULE = "bana.eval.bench.index"
ENDS = ("value", "low", "high")


def measure_index_apart(session: Session, settings: IndexSettings) -> dict[str, Figure]:
    """The figures of `index` at this size."""
    values = session.run_trial("index", lambda: _measure(session, settings))
    return split_figures(values, settings.pages)


def _measure(session: Session, settings: IndexSettings) -> Values:
    arguments = ["--pages", str(settings.pages), "--seed", str(session.request.seed)]
    arguments += ["--windows", str(settings.windows), "--window-s", str(settings.window_s)]
    report = msgspec.json.decode(run_apart(session, MODULE, arguments), type=BenchReport)
    return join_figures(report.figures)


def join_figures(figures: Mapping[str, Figure]) -> Values:
    """The figures as one flat record, as the trial log keeps it."""
    return {
        f"{name}/{end}": getattr(figure, end) for name, figure in figures.items() for end in ENDS
    }


def split_figures(values: Values, pages: int) -> dict[str, Figure]:
    """The inverse of `join_figures`, each held against its aim."""
    figures = {}
    for name, kind in list_figures(pages).items():
        value, low, high = (values[f"{name}/{end}"] for end in ENDS)
        figures[name] = judge_figure(value, low, high, kind.unit, kind.aim)
    return figures


def describe_index(settings: IndexSettings) -> Mapping[str, object]:
    """The settings as they stand in the report."""
    described: dict[str, object] = msgspec.to_builtins(settings)
    return described | {
        "module": MODULE,
        "operation": "one page in one call: matched, inserted, leased, released, evicted",
        "index_bytes_per_page": "resident memory that the process gained, over the pages",
    }
