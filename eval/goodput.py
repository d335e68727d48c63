"""What a load run amounts to. Every figure is defined once, in the README of this folder.

LoadRun ──window only──▶ judged requests ──▶ groups (all, class, quartile) ──▶ Summary
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from bana.eval.balance import measure_balance
from bana.eval.distributions import describe
from bana.eval.grouping import (
    GroupFrame,
    find_worst,
    group_classes,
    group_quartiles,
    make_frame,
    measure_jain,
    summarise_group,
)
from bana.eval.judging import Judged, judge
from bana.eval.requests import Ending, LoadRun, Observed, Probe, Validity
from bana.eval.runs import RunAbout, place_window, select_window
from bana.eval.segments import total_tokens
from bana.eval.sentence import compose_sentence
from bana.eval.summary import Distribution, Group, Summary

__all__ = ["EMPTY", "ProbeSummary", "judge", "measure_arrival_cv", "summarise", "summarise_probes"]

EMPTY = "no request was due in the window"


class ProbeSummary(msgspec.Struct, frozen=True):
    """How long newcomers waited, from their schedule; `failed` had no answer."""

    ttft_s: Distribution | None
    failed: int


class _Parts(msgspec.Struct, frozen=True):
    """How alike the parts of a run fared."""

    classes: tuple[Group, ...]
    quartiles: tuple[Group, ...]
    jain_index: float | None
    worst_class: str | None


def summarise(run: LoadRun, about: RunAbout) -> Summary:
    """Every figure of one run; only requests and probes due in the window count.

    Output tokens are those that came in the window, whichever request they belong to: arrivals go
    on before and after, so that what spills in stands for what spills out.
    """
    window, counted = place_window(run, about), select_window(run)
    judged, frame = [Judged(o, judge(o)) for o in counted], make_frame(window)
    parts = _compare_parts(judged, frame)
    probes = summarise_probes([p for p in run.probes if window.holds(p.due_s)])
    summary = Summary(
        target=about.target,
        seed=about.seed,
        fingerprint=about.fingerprint,
        workload=about.workload,
        validity=_check_validity(run.validity, counted),
        is_interrupted=run.is_interrupted,
        window_s=run.window_s,
        duration_s=run.duration_s,
        offered_rps=len(counted) / run.window_s,
        arrival_cv=measure_arrival_cv([o.due_s for o in counted]),
        input_tokens_per_s=sum(o.prompt_tokens for o in counted) / run.window_s,
        output_tokens_per_s=float(total_tokens(run.observed, window).sum()) / run.window_s,
        lateness_s=describe(None if o.sent_s is None else o.sent_s - o.due_s for o in counted),
        overall=summarise_group("all", judged, frame),
        classes=parts.classes,
        quartiles=parts.quartiles,
        jain_index=parts.jain_index,
        worst_class=parts.worst_class,
        probe_ttft_s=probes.ttft_s,
        probes_failed=probes.failed,
        balance=measure_balance(run.samples, window),
        cached_share=_measure_cached_share(counted),
        sentence="",
    )
    return msgspec.structs.replace(summary, sentence=compose_sentence(summary))


def summarise_probes(probes: Sequence[Probe]) -> ProbeSummary:
    """The head-of-line wait that these probes saw."""
    answered = [p for p in probes if p.ending is Ending.FINISHED and p.first_s is not None]
    waits_s = (None if p.first_s is None else p.first_s - p.due_s for p in answered)
    return ProbeSummary(describe(waits_s), len(probes) - len(answered))


def measure_arrival_cv(due_s: Sequence[float]) -> float | None:
    """Standard deviation over mean of the gaps between arrivals; None for fewer than two gaps.

    0 is a clock, 1 a Poisson process, more is burstier. None too where all arrive at once.
    """
    gaps_s = np.diff(np.sort(np.array(due_s, dtype=np.float64)))
    if gaps_s.size < 2 or not gaps_s.any():
        return None
    return float(gaps_s.std() / gaps_s.mean())


def _compare_parts(judged: Sequence[Judged], frame: GroupFrame) -> _Parts:
    classes, quartiles = group_classes(judged, frame), group_quartiles(judged, frame)
    jain_index = measure_jain(classes if len(classes) > 1 else quartiles)
    return _Parts(classes, quartiles, jain_index, find_worst(classes))


def _check_validity(validity: Validity, counted: Sequence[Observed]) -> Validity:
    return validity if counted else Validity(False, (*validity.reasons, EMPTY))


def _measure_cached_share(counted: Sequence[Observed]) -> float | None:
    told = [o for o in counted if o.cached_tokens is not None]
    prompt_tokens = sum(o.prompt_tokens for o in told)
    return sum(o.cached_tokens or 0 for o in told) / prompt_tokens if prompt_tokens else None
