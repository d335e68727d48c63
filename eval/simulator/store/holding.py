"""Which waiting requests are passed over while pages are on their way, as the engine's `Holds`.

asked ─▶ held: in no pass ─ news, or its time is up: thought over ─▶ not worth it any more: queue
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from bana.eval.simulator.jobs import Job
from bana.eval.simulator.store.want import Want
from bana.slo.restore import RestorePlan

Decide = Callable[[Job, Want, float], RestorePlan]


class _Held:
    """One held request, and until when by what was known at the last look."""

    __slots__ = ("job", "plan", "want", "was_answered")

    def __init__(self, job: Job, want: Want, plan: RestorePlan) -> None:
        self.job = job
        self.want = want
        self.plan = plan
        self.was_answered = want.known is not None

    @property
    def has_news(self) -> bool:
        """Whether something has happened that the plan waits for."""
        want = self.want
        if want.known is None:
            return False
        return not self.was_answered or want.is_settled or want.arrived >= self.plan.pages


class Holds:
    """Who is held. A look takes O(held) where something has come or a hold ends, else O(1)."""

    def __init__(self, decide: Decide) -> None:
        self._decide = decide
        self._held: dict[int, _Held] = {}
        self.next_end_s = math.inf

    def __len__(self) -> int:
        return len(self._held)

    def count_others(self, job: Job) -> int:
        """How many are held beside this one."""
        return len(self._held) - (job.index in self._held)

    def has_unanswered(self, since_s: float) -> bool:
        """Whether somebody waits for an answer who has asked at `since_s` or later."""
        held = self._held.values()
        return any(h.want.known is None and h.want.asked_s >= since_s for h in held)

    def add(self, job: Job, want: Want, now_s: float) -> None:
        """Hold the request from now on."""
        held = self._held[job.index] = _Held(job, want, self._decide(job, want, now_s))
        self.next_end_s = min(self.next_end_s, held.plan.until_s)

    def drop(self, job: Job) -> None:
        """Hold the request no longer."""
        self._held.pop(job.index, None)
        if not self._held:
            self.next_end_s = math.inf

    def refresh(self, now_s: float) -> None:
        """Something has come: think over whom that concerns."""
        self._think_over([held for held in self._held.values() if held.has_news], now_s)

    def take_over(self, now_s: float) -> list[tuple[Job, RestorePlan]]:
        """Whose hold ends now, and by which plan; they are held no longer."""
        if now_s < self.next_end_s:
            return []
        self._think_over([h for h in self._held.values() if h.plan.until_s <= now_s], now_s)
        over = [(h.job, h.plan) for h in self._held.values() if h.plan.until_s <= now_s]
        for job, _ in over:
            self.drop(job)
        return over

    def _think_over(self, concerned: Iterable[_Held], now_s: float) -> None:
        for held in concerned:
            held.was_answered = held.want.known is not None
            held.plan = self._decide(held.job, held.want, now_s)
        ends_s = (held.plan.until_s for held in self._held.values())
        self.next_end_s = min(ends_s, default=math.inf)
