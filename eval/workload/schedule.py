"""Which turn of which conversation is due when.

Conversations begin as the arrival process says. Those that began before zero are joined in
their middle, so that the rate and the mix of early and late turns hold from the first second:

    c0  ●────●────●                 a turn is due think_s after the turn before it was
    c1       ●────●────●────●
              │▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│    the schedule holds the turns that are due in it
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from bana.eval.workload.arrivals import Phases, Process, Rng, plan_arrivals
from bana.eval.workload.conversations import Conversation
from bana.eval.workload.seeds import Purpose, Seeds
from bana.eval.workload.sources import Source
from bana.eval.workload.spec import (
    ArrivalKind,
    ArrivalSpec,
    RampSpec,
    ThinkKind,
    TurnsSpec,
    WorkloadSpec,
)
from bana.slo.errors import ConfigError

MAX_CONVERSATIONS = 2_000_000


class Slot(msgspec.Struct, frozen=True, gc=False):
    """One request to be: a turn of a conversation at its time."""

    due_s: float
    conversation: Conversation
    turn: int


class Schedule(msgspec.Struct, frozen=True):
    """Slots ordered by time. `time_scale` is trace seconds for each second of the schedule."""

    phases: Phases
    slots: tuple[Slot, ...]
    notes: Mapping[str, object]
    time_scale: float = 1.0


def plan_schedule(spec: WorkloadSpec, source: Source, seeds: Seeds) -> Schedule:
    """All requests of warm-up, window and cool-down; ConfigError when they are too many."""
    if spec.arrivals.kind is ArrivalKind.TRACE and source.times_s is not None:
        schedule = _replay(spec, source, source.times_s)
    else:
        schedule = _run_process(spec, source, seeds)
    if len(schedule.slots) > spec.arrivals.max_requests:
        raise ConfigError(
            f"workload arrivals.max_requests={spec.arrivals.max_requests}: "
            f"{len(schedule.slots)} requests would be due; lower arrivals.rate_rps or "
            "duration_s, choose a shorter segment, or raise it (at most 1000000)"
        )
    return schedule


def _run_process(spec: WorkloadSpec, source: Source, seeds: Seeds) -> Schedule:
    arrivals = spec.arrivals
    phases = Phases(arrivals.warmup_s, arrivals.duration_s or 0.0, arrivals.cooldown_s)
    process = Process(
        kind=arrivals.kind,
        rate_rps=(arrivals.rate_rps or 0.0) / source.mean_turns,
        cv=arrivals.cv or 1.0,
        ramp=arrivals.ramp or RampSpec(1.0, 1.0),
        before_s=_longest_s(spec.turns, source.max_turns),
    )
    _check_memory(process, phases)
    starts = plan_arrivals(process, phases, _choose_rng(process.kind, seeds))
    composed = source.compose(len(starts))
    turns = [len(c.turns) for c in composed.conversations]
    thinks = _draw_thinks(spec.turns, sum(turns) - len(turns), seeds)
    every = _expand(starts, composed.conversations, thinks)
    slots = sorted((s for s in every if 0 <= s.due_s < phases.total_s), key=lambda s: s.due_s)
    return Schedule(phases, tuple(slots), composed.notes)


def _choose_rng(kind: ArrivalKind, seeds: Seeds) -> Rng:
    if kind is ArrivalKind.BENCH_SERVING:
        return seeds.legacy_generator()
    return seeds.generator(Purpose.ARRIVALS)


def _longest_s(turns: TurnsSpec | None, max_turns: int) -> float:
    """How long a conversation lasts at most; with exponential times all but one in a million."""
    if turns is None or max_turns == 1:
        return 0.0
    gaps = max_turns - 1
    if turns.think is ThinkKind.CONSTANT:
        return gaps * turns.think_s
    return turns.think_s * (gaps + 6 * math.sqrt(gaps) + 12)


def _check_memory(process: Process, phases: Phases) -> None:
    factor = max(process.ramp.start, process.ramp.end)
    expected = process.rate_rps * factor * (process.before_s + phases.total_s)
    if expected > MAX_CONVERSATIONS:
        raise ConfigError(
            f"workload turns: about {expected:.0f} conversations would have to be planned, since "
            f"one may last {process.before_s:.0f} s (at most {MAX_CONVERSATIONS}); lower "
            "turns.think_s, turns.high or arrivals.rate_rps"
        )


def _draw_thinks(turns: TurnsSpec | None, count: int, seeds: Seeds) -> NDArray[np.float64]:
    if turns is None or turns.think is ThinkKind.CONSTANT:
        return np.full(count, turns.think_s if turns is not None else 0.0)
    return seeds.generator(Purpose.THINK).standard_exponential(count) * turns.think_s


def _expand(
    starts: NDArray[np.float64],
    conversations: Sequence[Conversation],
    thinks: NDArray[np.float64],
) -> Iterator[Slot]:
    waits = iter(thinks.tolist())
    for start_s, conversation in zip(starts.tolist(), conversations, strict=True):
        due_s = start_s
        for turn in range(len(conversation.turns)):
            due_s += next(waits) if turn else 0.0
            yield Slot(due_s, conversation, turn)


def _replay(spec: WorkloadSpec, source: Source, times_s: NDArray[np.float64]) -> Schedule:
    span_s = float(times_s[-1])
    gap_s = span_s / (len(times_s) - 1) if span_s > 0 else 1.0
    scale = spec.trace.time_scale if spec.trace is not None else None
    if spec.arrivals.rate_rps is not None:
        scale = spec.arrivals.rate_rps * gap_s
    scale = scale or 1.0
    due_s = times_s / scale
    # The last request has a gap after it, as all others have.
    phases = _fit_phases(spec.arrivals, (span_s + gap_s) / scale)
    count = int(np.searchsorted(due_s, phases.total_s))
    composed = source.compose(count)
    slots = _expand(due_s[:count], composed.conversations, np.empty(0))
    return Schedule(phases, tuple(slots), composed.notes, scale)


def _fit_phases(arrivals: ArrivalSpec, available_s: float) -> Phases:
    around_s = arrivals.warmup_s + arrivals.cooldown_s
    window_s = available_s - around_s if arrivals.duration_s is None else arrivals.duration_s
    if window_s <= 0 or around_s + window_s > available_s * (1 + 1e-9):
        raise ConfigError(
            f"the trace lasts {available_s:.6g} s from its offset on at this time scale; "
            f"arrivals.warmup_s={arrivals.warmup_s:g}, duration_s={arrivals.duration_s} and "
            f"cooldown_s={arrivals.cooldown_s:g} do not fit; shorten them or lower the time scale"
        )
    return Phases(arrivals.warmup_s, window_s, arrivals.cooldown_s)
