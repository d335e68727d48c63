"""A run with what must be known to read it, and where its window lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bana.eval.requests import LoadRun, Observed, Phase, Workload
from bana.slo.errors import ConfigError


class RunAbout(msgspec.Struct, frozen=True):
    """What was run: `workload` holds the facts behind `fingerprint`.

    `window_start_s`: when the window began; None has it found from the phases of the requests.
    """

    target: str
    seed: int
    fingerprint: str
    workload: Mapping[str, object]
    window_start_s: float | None = None


class RunRecord(msgspec.Struct, frozen=True):
    """One run as it is kept."""

    about: RunAbout
    run: LoadRun


class Window(msgspec.Struct, frozen=True):
    """The measured part of a run, `start_s <= t < start_s + length_s`."""

    start_s: float
    length_s: float

    @property
    def end_s(self) -> float:
        return self.start_s + self.length_s

    def holds(self, at_s: float) -> bool:
        """Whether a moment lies in the window."""
        return self.start_s <= at_s < self.end_s


def tell_about(workload: Workload, target: str) -> RunAbout:
    """What a run of `workload` against `target` must remember.

    The window begins after the fact `warmup_s`, where there is one.
    """
    warmup_s = workload.facts.get("warmup_s")
    start_s = float(warmup_s) if isinstance(warmup_s, int | float) else None
    return RunAbout(target, workload.seed, workload.fingerprint, workload.facts, start_s)


def place_window(run: LoadRun, about: RunAbout) -> Window:
    """Where the window of a run lies.

    Unless told, it begins with the schedule, or after a warm-up with the window's first request,
    moved as far as the first request after the window and the last one in it demand: right to
    within a gap between arrivals.
    """
    if not run.window_s > 0:
        raise ConfigError(f"window_s={run.window_s:g}, allowed: > 0; the run's file is damaged")
    start_s = about.window_start_s
    return Window(_find_start_s(run) if start_s is None else start_s, run.window_s)


def select_window(run: LoadRun) -> tuple[Observed, ...]:
    """The requests that count, in the order of the schedule."""
    counted = (o for o in run.observed if o.phase is Phase.WINDOW)
    return tuple(sorted(counted, key=lambda o: (o.due_s, o.index)))


def _find_start_s(run: LoadRun) -> float:
    due_s = {phase: _list_due_s(run.observed, phase) for phase in Phase}
    warming, measured, cooling = (due_s[phase] for phase in Phase)
    start_s = min(measured, default=max(warming)) if warming else 0.0
    if cooling:
        start_s = min(start_s, min(cooling) - run.window_s)
    if measured:
        start_s = max(start_s, max(measured) - run.window_s)
    return start_s


def _list_due_s(observed: Sequence[Observed], phase: Phase) -> list[float]:
    return [o.due_s for o in observed if o.phase is phase]
