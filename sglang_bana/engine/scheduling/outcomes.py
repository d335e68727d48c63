"""What became of the budgets of an engine's requests, class by class."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
from sglang.srt.managers.schedule_batch import FINISH_ABORT

from bana.slo.budget import BudgetOutcome, judge_budget
from bana.slo.handoff import Handoff, read_handoff
from bana.slo.wire import ClassReport, Tally
from sglang_bana.engine.scheduling.calibration import RID_PREFIX
from sglang_bana.engine.scheduling.waiting_room import Slots

TTFT_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)
TPOT_BOUNDS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0)
SLACK_BOUNDS_S = (-60.0, -20.0, -5.0, -2.0, -0.5, 0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
# Class names come from clients' keys and headers, so they are capped.
MAX_CLASSES = 64
OTHER_CLASS = "other"
# SGLang's own probes and bana's calibration are nobody's requests.
OWN_RIDS = (RID_PREFIX, "HEALTH_CHECK")


def is_own(req: Any) -> bool:
    """Whether no client waits for this request."""
    return bool(req.rid.startswith(OWN_RIDS))


def has_client(req: Any) -> bool:
    """Whether a client waits for this answer: not where another instance is to give it."""
    params = getattr(req.sampling_params, "custom_params", None)
    return not is_own(req) and read_handoff(params) is not Handoff.PREFILL


class Histogram:
    """Counts of values between fixed bounds."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def add(self, value_s: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds_s, value_s)] += 1
        self._sum_s += value_s

    def report(self) -> Tally:
        """The counts up to now."""
        return Tally(self._bounds_s, tuple(self._counts), self._sum_s)


class ClassBook:
    """The outcomes of one class."""

    def __init__(self) -> None:
        self.demoted = self.yielded = self.rejected = 0
        self.slack = Histogram(SLACK_BOUNDS_S)
        self._answered = self._met = 0
        self._missed: dict[str, int] = {}
        self._ttft = Histogram(TTFT_BOUNDS_S)
        self._tpot = Histogram(TPOT_BOUNDS_S)

    def add(self, outcome: BudgetOutcome) -> None:
        """Count one answered request."""
        self._answered += 1
        self._met += outcome.is_met
        for limit in outcome.missed:
            self._missed[limit] = self._missed.get(limit, 0) + 1
        self._ttft.add(outcome.ttft_s)
        if outcome.tpot_s is not None:
            self._tpot.add(outcome.tpot_s)

    def report(self) -> ClassReport:
        """The numbers up to now."""
        return ClassReport(
            answered=self._answered,
            met=self._met,
            missed=dict(self._missed),
            demoted=self.demoted,
            yielded=self.yielded,
            rejected=self.rejected,
            ttft=self._ttft.report(),
            tpot=self._tpot.report(),
            slack=self.slack.report(),
        )


class Outcomes:
    """The books of all classes; the scheduler's thread writes, any thread may read a report."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._books: list[ClassBook] = []

    def number(self, slo_class: str) -> int:
        """The number of a class's book; past `MAX_CLASSES` that of the common one."""
        name = slo_class
        if name not in self._numbers and len(self._numbers) >= MAX_CLASSES:
            name = OTHER_CLASS
        if name not in self._numbers:
            self._books.append(ClassBook())
            self._numbers[name] = len(self._books) - 1
        return self._numbers[name]

    def book(self, slo_class: str) -> ClassBook:
        """The book of a class."""
        return self._books[self.number(slo_class)]

    def note_demoted(self, numbers: Slots) -> None:
        """Requests were demoted; `numbers` are those of their books."""
        for number, count in enumerate(np.bincount(numbers).tolist()):
            self._books[number].demoted += count

    def note_tokens(self, reqs: Sequence[Any], now_s: float) -> None:
        """A step has ended: first tokens are stamped, and finished requests judged."""
        for req in reqs:
            standing = getattr(req, "bana", None)
            if standing is None or not req.output_ids:
                continue
            if standing.first_token_s is None:
                standing.first_token_s = now_s
            if req.finished() and standing.outcome is None:
                standing.outcome = judge_budget(
                    standing.budget, standing.first_token_s, now_s, len(req.output_ids)
                )
                if has_client(req) and not isinstance(req.finished_reason, FINISH_ABORT):
                    self.book(standing.budget.slo_class).add(standing.outcome)

    def report(self) -> dict[str, ClassReport]:
        """Every class that was seen."""
        return {name: self._books[number].report() for name, number in list(self._numbers.items())}
