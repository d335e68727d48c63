"""The decoding requests. Each decode step is a *beat*, in which every one of them gets a token.

Nothing is done for each request at a beat: who ends at which beat is known when it joins, as is at
which beats it needs another page. A beat costs O(1) and O(log) for each request that ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from bana.eval.simulator.jobs import Burst, Job, Stage
from bana.eval.simulator.showing import Showing
from bana.slo.pace import Pace


class RunningBatch:
    """Who decodes, and when each beat ended (`beats_s`)."""

    def __init__(self, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._page_phases = [0] * page_tokens
        self._ends: dict[int, list[Job]] = {}
        self._end_of: dict[int, int] = {}
        self._limits_s: list[tuple[float, int]] = []
        self._open_ended = 0
        self._outputs_left = 0
        self._open_outputs_left = 0
        self._faded: list[Job] = []
        self._faded_s: float | None = None
        self.beats_s: list[float] = []
        self.jobs: dict[int, Job] = {}
        self.context_tokens = 0

    def __len__(self) -> int:
        return len(self.jobs)

    def join(self, job: Job, at_s: float) -> None:
        """A request whose next token came at `at_s`, not its last one, decodes from now on."""
        now = len(self.beats_s)
        job.stage = Stage.RUNNING
        job.bursts.append(Burst(at_s, now))
        self.jobs[job.index] = job
        end = now + job.outputs_left
        self._ends.setdefault(end, []).append(job)
        self._end_of[job.index] = end
        self._page_phases[(job.length - 1 - now) % self._page_tokens] += 1
        self.context_tokens += job.length
        self._reserve(job, 1)
        heapq.heappush(self._limits_s, (job.budget.tpot_s, job.index))

    def beat(self, end_s: float) -> list[Job]:
        """Every request got a token at `end_s`; those that had their last one have left."""
        self.beats_s.append(end_s)
        self.context_tokens += len(self.jobs)
        self._outputs_left -= len(self.jobs) - self._open_ended
        self._open_outputs_left -= self._open_ended
        now = len(self.beats_s)
        ended = [j for j in self._ends.pop(now, ()) if self._end_of.get(j.index) == now]
        for job in ended:
            self.leave(job)
            self.fade(job, end_s)
        return ended

    def fade(self, job: Job, at_s: float) -> None:
        """A request had its last token at `at_s`; who decides may not have seen it yet."""
        if at_s != self._faded_s:
            self._faded, self._faded_s = [], at_s
        self._faded.append(job)

    def list_fading(self, showing: Showing, now_s: float) -> list[Job]:
        """Whose last token is not seen yet: they count as decoding, and compute no more."""
        return self._faded if self._faded_s == now_s and showing.hides(now_s) else []

    def leave(self, job: Job) -> None:
        """A request decodes no longer; what it got is entered."""
        now = len(self.beats_s)
        job.emitted += now - job.bursts[-1].first_beat
        job.bursts[-1].end_beat = now
        del self.jobs[job.index]
        del self._end_of[job.index]
        self._page_phases[(job.length - 1 - now) % self._page_tokens] -= 1
        self.context_tokens -= job.length
        self._reserve(job, -1)

    def count_emitted(self, job: Job) -> int:
        """The tokens that a decoding request has got."""
        return job.emitted + len(self.beats_s) - job.bursts[-1].first_beat

    def count_pages_needed(self) -> int:
        """How many requests have no page for the token that the next beat computes."""
        return self._page_phases[-len(self.beats_s) % self._page_tokens]

    def reserve_tokens(self, ratio: float) -> float:
        """The tokens to come, those of open-ended answers counted as `ratio` of their limit."""
        return self._outputs_left + ratio * self._open_outputs_left

    def find_tightest_tpot_s(self, fading: Iterable[Job] = ()) -> float | None:
        """The smallest TPOT limit, None when nothing decodes and nothing fades."""
        while self._limits_s and self._limits_s[0][1] not in self.jobs:
            heapq.heappop(self._limits_s)
        limits_s = [job.budget.tpot_s for job in fading]
        if self._limits_s:
            limits_s.append(self._limits_s[0][0])
        return min(limits_s, default=None)

    def list_paces(self, showing: Showing, now_s: float) -> Iterator[Pace]:
        """Each decoding request's progress against its TPOT limit, as seen so far. O(requests)."""
        is_hiding = showing.hides(now_s)
        for job in self.jobs.values():
            hidden = is_hiding and self._find_last_s(job) == now_s
            left_tokens = self._end_of[job.index] - len(self.beats_s) + hidden
            yield _pace(job, showing, self.count_emitted(job) - hidden, left_tokens)
        for job in self.list_fading(showing, now_s):
            yield _pace(job, showing, job.emitted - 1, 1)

    def _find_last_s(self, job: Job) -> float:
        """When the latest token of a decoding request came."""
        burst = job.bursts[-1]
        return self.beats_s[-1] if burst.first_beat < len(self.beats_s) else burst.at_s

    def _reserve(self, job: Job, sign: int) -> None:
        if job.is_open_ended:
            self._open_ended += sign
            self._open_outputs_left += sign * job.outputs_left
        else:
            self._outputs_left += sign * job.outputs_left


def _pace(job: Job, showing: Showing, out_tokens: int, left_tokens: int) -> Pace:
    """A first token that is not seen yet counts as seen now."""
    begun_s = showing.when_seen(job.bursts[0].at_s)
    return Pace(begun_s, job.budget.tpot_s, max(out_tokens, 1), left_tokens)
