"""Runs a benchmark by name: settings, resumption, pairs, report.

    settings + source + machine = key ──▶ trials (taken, or kept) ──▶ figures ──▶ report

A quick run is a smoke: its figures carry no verdict.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import FrameType

import msgspec

from bana.eval.bench.facts import Source, describe_machine, read_source
from bana.eval.bench.pairs import (
    MeasureRun,
    Pair,
    PairPlan,
    Run,
    join_pair,
    plan_runs,
    split_pair,
)
from bana.eval.bench.trials import (
    TrialLog,
    Values,
    open_trials,
    partial_path,
    trials_path,
)
from bana.slo.errors import ConfigError, describe_unknown
from bana.slo.figures import BenchReport, Figure

Say = Callable[[str], None]
# Of the values of a trial, so many are worth a line.
MAX_SHOWN = 16
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Scale(StrEnum):
    """How long to measure: a smoke of a minute, the default, or longer."""

    QUICK = "quick"
    DEFAULT = "default"
    FULL = "full"


class Earlier(StrEnum):
    """What becomes of the trials of an interrupted run."""

    RESUME = "resume"
    DISCARD = "discard"


class BenchRequest(msgspec.Struct, frozen=True):
    """What the user asked for; no `parts` are all."""

    output: Path
    seed: int = 0
    scale: Scale = Scale.DEFAULT
    earlier: Earlier = Earlier.RESUME
    parts: tuple[str, ...] = ()


class Interruption:
    """Whether the run was told to end.

    The signal raises KeyboardInterrupt at once, but Python drops an exception that hits a
    callback of its own (around a fork, say), so it is also remembered.
    """

    def __init__(self) -> None:
        self._is_wanted = False

    def note(self, _signum: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        self._is_wanted = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """KeyboardInterrupt once the run was told to end."""
        if self._is_wanted:
            raise KeyboardInterrupt


class Session:
    """What a running benchmark measures through: resumed trials are recalled, not repeated.

    `notes` are settings that only show while measuring; the report has them with the others.
    """

    def __init__(
        self, request: BenchRequest, log: TrialLog, say: Say, interruption: Interruption
    ) -> None:
        self.request = request
        self.notes: dict[str, object] = {}
        self._log = log
        self._say = say
        self._interruption = interruption

    def say(self, line: str) -> None:
        """A line of progress; also where a run notices that it was told to end."""
        self._say(line)
        self._interruption.check()

    def wants(self, part: str) -> bool:
        """Whether this part of the benchmark was asked for."""
        return not self.request.parts or part in self.request.parts

    def run_trial(self, name: str, measure: Callable[[], Values]) -> Values:
        """One measurement, or what it gave before the interruption."""
        known = self._log.recall(name)
        if known is not None:
            self.say(f"{name}: kept from the interrupted run")
            return known
        values = measure()
        self._log.append(name, values)
        self.say(f"{name}: " + _list_values(values))
        return values

    def run_pairs(self, plan: PairPlan, measure: MeasureRun) -> list[Pair]:
        """All pairs of `plan`, alternating; a pair that was cut off is taken again as a whole."""
        pairs = []
        for order in plan_runs(plan):
            name = f"{plan.name} {order[0].index + 1}/{plan.pairs}"
            flat = self.run_trial(name, partial(_take_pair, plan, order, measure))
            pairs.append(split_pair(plan, flat))
        return pairs

    def seed_of(self, index: int) -> int:
        """The seed of repetition `index`, the same for both sides of a pair."""
        return self.request.seed * 1_000 + index


class Bench(msgspec.Struct, frozen=True):
    """One benchmark: what it answers, the settings of a scale, and how it is taken.

    Each of its `parts` can be measured without the others; the figures of a part are its own.
    """

    help: str
    settings: Callable[[Scale], Mapping[str, object]]
    measure: Callable[[Session], Mapping[str, Figure]]
    parts: tuple[str, ...] = ()


def run_bench(bench: Bench, request: BenchRequest, say: Say) -> BenchReport:
    """Measure, write the report to `request.output` and return it.

    ConfigError when the output cannot be written or a part is unknown, BenchError when the run is
    invalid. On an interruption the trials taken so far stay beside the output; whichever parts are
    asked for, they are the same.
    """
    output = request.output
    _require_known(bench.parts, request.parts)
    if not output.parent.is_dir() or output.is_dir():
        raise ConfigError(f"cannot write --json {output}: name a file in an existing folder")
    unfinished = partial_path(output)
    source = read_source()
    blank = _describe_run(bench, request, source)
    key = _key_run(blank, source)
    with _interruptible() as interruption, open_trials(unfinished, key) as log:
        if request.earlier is Earlier.DISCARD:
            log.clear()
        elif len(log):
            say(f"resuming: {len(log)} trials kept from an interrupted run (--fresh discards them)")
        session = Session(request, log, say, interruption)
        figures = bench.measure(session)
        report = msgspec.structs.replace(
            blank,
            commit=_name_commit(source, read_source()),
            settings={**blank.settings, **session.notes, **_name_parts(request)},
            figures=_claim(figures, request.scale),
        )
        write_report(output, report)
        unfinished.replace(trials_path(output))
    return report


def _require_known(known: Sequence[str], parts: Sequence[str]) -> None:
    for part in parts:
        if part not in known:
            raise ConfigError(describe_unknown("part", part, known))


def _name_parts(request: BenchRequest) -> dict[str, object]:
    return {"parts": list(request.parts)} if request.parts else {}


def _take_pair(plan: PairPlan, order: tuple[Run, Run], measure: MeasureRun) -> Values:
    return join_pair(plan, {run.side: measure(run) for run in order})


def write_report(output: Path, report: BenchReport) -> None:
    """Put the report in place atomically."""
    pending = output.with_name(output.name + ".pending")
    with pending.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    pending.replace(output)


def _describe_run(bench: Bench, request: BenchRequest, source: Source) -> BenchReport:
    settings = {"scale": request.scale.value, **bench.settings(request.scale)}
    return BenchReport(
        machine=describe_machine(),
        commit=source.commit,
        seed=request.seed,
        settings=settings,
        figures={},
    )


def _name_commit(before: Source, after: Source) -> str:
    """The commit, marked when servers that started late may have run another source."""
    return before.commit if before == after else f"{before.commit}+changed-while-measured"


def _key_run(blank: BenchReport, source: Source) -> str:
    # Two dirty trees share a commit; the digest of their changes tells them apart.
    identity = msgspec.json.encode([blank, source.digest], order="deterministic")
    return hashlib.sha256(identity).hexdigest()[:16]


def _claim(figures: Mapping[str, Figure], scale: Scale) -> dict[str, Figure]:
    if scale is not Scale.QUICK:
        return dict(figures)
    return {name: msgspec.structs.replace(f, met=None) for name, f in figures.items()}


def _list_values(values: Values) -> str:
    shown = [f"{name} {value:.4g}" for name, value in itertools.islice(values.items(), MAX_SHOWN)]
    left = len(values) - len(shown)
    return ", ".join([*shown, f"and {left} more"] if left else shown)


@contextlib.contextmanager
def _interruptible() -> Iterator[Interruption]:
    """Ctrl-C and SIGTERM end a run in order, so that what was started is stopped."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.signal(number, interruption.note) for number in SIGNALS}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
