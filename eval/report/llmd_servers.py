"""The instances that a server told about, as components of llm-d's report."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping, Sequence

from bana.eval.report.curves import Bins, BinSummary, summarise_bins
from bana.eval.report.llmd_statistics import (
    COUNT,
    Json,
    describe_series,
    describe_values,
    drop_missing,
)
from bana.eval.report.records import StoredRun
from bana.eval.report.text import clean_text
from bana.eval.report.timeline import cover_run
from bana.eval.requests import ServerSample
from bana.eval.runs import place_window

MAX_INSTANCES = 64


def describe_stack(stored: StoredRun) -> list[Json]:
    """One generic component an instance: what runs there is not for a client to know."""
    return [
        {
            "metadata": {"label": label, "cfg_id": _digest(label)},
            "standardized": {
                "kind": "generic",
                "tool": "openai-compatible server",
                "tool_version": "unknown",
            },
            "native": {},
        }
        for label in map(clean_text, list_instances(stored.record.run.samples))
    ]


def describe_servers(stored: StoredRun) -> list[Json]:
    """Running and waiting requests of each instance: over the window, and over the run."""
    run = stored.record.run
    window, bins = place_window(run, stored.record.about), cover_run(run)
    counted = [s for s in run.samples if window.holds(s.at_s)]
    started_at = stored.origin.started_at
    return [
        _describe_instance(name, counted, _trace(run.samples, name, bins), started_at)
        for name in list_instances(run.samples)
    ]


def list_instances(samples: Sequence[ServerSample]) -> list[str]:
    """The instances by name, up to a bound."""
    return sorted({name for s in samples for name in (*s.running, *s.waiting)})[:MAX_INSTANCES]


def _describe_instance(
    name: str,
    counted: Sequence[ServerSample],
    traced: Mapping[str, BinSummary | None],
    started_at: datetime.datetime | None,
) -> Json:
    aggregate = {
        "running_requests": describe_values(_list_running(counted, name), COUNT),
        "waiting_requests": describe_values(_list_waiting(counted, name), COUNT),
    }
    series = {key: describe_series(s, COUNT, started_at) for key, s in traced.items()}
    return drop_missing(
        {
            "component_label": clean_text(name),
            "aggregate": drop_missing(aggregate) or None,
            "time_series": drop_missing(series) or None,
        }
    )


def _trace(
    samples: Sequence[ServerSample], name: str, bins: Bins
) -> Mapping[str, BinSummary | None]:
    told = [s for s in samples if name in s.running and name in s.waiting]
    if not told:
        return {}
    times_s = [s.at_s for s in told]
    return {
        "num_requests_running": summarise_bins(times_s, _list_running(told, name), bins),
        "num_requests_waiting": summarise_bins(times_s, _list_waiting(told, name), bins),
    }


def _list_running(samples: Sequence[ServerSample], name: str) -> list[float]:
    return [s.running[name] for s in samples if name in s.running]


def _list_waiting(samples: Sequence[ServerSample], name: str) -> list[float]:
    return [s.waiting[name] for s in samples if name in s.waiting]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]
