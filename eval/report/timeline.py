"""A run over time: what was offered and finished, what missed and why, what the server told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

import msgspec

from bana.eval.distributions import measure_ttft_s
from bana.eval.judging import judge
from bana.eval.report.curves import Bins, BinSummary, count_bins, plan_bins, summarise_bins
from bana.eval.report.records import StoredRun
from bana.eval.requests import Ending, LoadRun, Observed, Probe, ServerSample
from bana.eval.runs import Window, place_window
from bana.eval.summary import Dimension

# A request that missed in several ways is drawn once, by the first of these.
CAUSES = (Dimension.NO_ANSWER, Dimension.TTFT, Dimension.TPOT, Dimension.E2E)
MAX_FAILED_PROBES = 200


class Probed(msgspec.Struct, frozen=True):
    """What the probes saw; `failed_s` is when those without an answer were due."""

    answered: BinSummary
    failed_s: tuple[float, ...]


class Timeline(msgspec.Struct, frozen=True):
    """Series by bin, and by the middles of those bins that hold something."""

    bins: Bins
    window: Window
    offered: tuple[int, ...]
    finished: tuple[int, ...]
    missed: Mapping[Dimension, tuple[int, ...]]
    ttft_s: BinSummary
    probes: Probed | None
    running: BinSummary | None
    waiting: BinSummary | None


class Moment(msgspec.Struct, frozen=True):
    """One value of a series."""

    at_s: float
    value: float


def trace_timeline(stored: StoredRun) -> Timeline:
    """The whole run, warm-up and cool-down included; misses count when a request was due."""
    run = stored.record.run
    bins = cover_run(run)
    ends = [(o.ending, o.end_s) for o in run.observed if o.end_s is not None]
    waits = [(o.due_s, measure_ttft_s(o)) for o in run.observed]
    return Timeline(
        bins=bins,
        window=place_window(run, stored.record.about),
        offered=count_bins([o.due_s for o in run.observed], bins),
        finished=count_bins([end_s for how, end_s in ends if how is Ending.FINISHED], bins),
        missed=_count_misses(run.observed, bins),
        ttft_s=_summarise([Moment(at, wait) for at, wait in waits if wait is not None], bins),
        probes=_trace_probes(run.probes, bins) if run.probes else None,
        running=_total_samples(run.samples, _running, bins),
        waiting=_total_samples(run.samples, _waiting, bins),
    )


def pick_cause(missed: Set[Dimension]) -> Dimension | None:
    """The one reason by which a request is drawn, None when it missed nothing."""
    return next((cause for cause in CAUSES if cause in missed), None)


def cover_run(run: LoadRun) -> Bins:
    """The stretches that a run is drawn in, from its first request to its last end."""
    begins = [o.due_s for o in run.observed]
    ends = [o.end_s for o in run.observed if o.end_s is not None]
    return plan_bins(min([0.0, *begins]), max([run.duration_s, run.window_s, *begins, *ends]))


def _count_misses(observed: Sequence[Observed], bins: Bins) -> Mapping[Dimension, tuple[int, ...]]:
    due_s: dict[Dimension, list[float]] = {cause: [] for cause in CAUSES}
    for request in observed:
        cause = pick_cause(judge(request))
        if cause is not None:
            due_s[cause].append(request.due_s)
    return {cause: count_bins(times_s, bins) for cause, times_s in due_s.items()}


def _trace_probes(probes: Sequence[Probe], bins: Bins) -> Probed:
    waits_s = [(p.due_s, _measure_probe_s(p)) for p in probes]
    answered = [Moment(due_s, wait_s) for due_s, wait_s in waits_s if wait_s is not None]
    failed_s = [due_s for due_s, wait_s in waits_s if wait_s is None]
    return Probed(_summarise(answered, bins), tuple(failed_s[:MAX_FAILED_PROBES]))


def _measure_probe_s(probe: Probe) -> float | None:
    if probe.ending is not Ending.FINISHED or probe.first_s is None:
        return None
    return probe.first_s - probe.due_s


def _total_samples(
    samples: Sequence[ServerSample], read: Callable[[ServerSample], Mapping[str, float]], bins: Bins
) -> BinSummary | None:
    totals = [Moment(s.at_s, float(sum(read(s).values()))) for s in samples if read(s)]
    return _summarise(totals, bins) if totals else None


def _summarise(moments: Sequence[Moment], bins: Bins) -> BinSummary:
    return summarise_bins([m.at_s for m in moments], [m.value for m in moments], bins)


def _running(sample: ServerSample) -> Mapping[str, float]:
    return sample.running


def _waiting(sample: ServerSample) -> Mapping[str, float]:
    return sample.waiting
