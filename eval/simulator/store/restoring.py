"""The instance's side of the store: who asks, who is held, what came of it.

queued ─ ask for what the device lacks ─▶ held ─▶ queue again ─▶ started: loads what has arrived
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from bana.eval.simulator.jobs import Job
from bana.eval.simulator.store.holding import Holds
from bana.eval.simulator.store.store import Store
from bana.eval.simulator.store.want import Want
from bana.slo.fetching import ComputeView
from bana.slo.restore import RestorePlan, RestoreView

DEVICE, COMPUTED = "device", "computed"


class Restorer:
    """What one instance does with its store. `decide` asks the policy, `find_compute` the engine.

    `places` names the sources of restored pages, the arena first; `sources` counts prompt tokens.
    """

    def __init__(
        self,
        store: Store,
        places: tuple[str, ...],
        page_tokens: int,
        decide: Callable[[RestoreView, float], RestorePlan],
        find_compute: Callable[[], ComputeView],
    ) -> None:
        self.store = store
        self.holds = Holds(self._decide)
        self._expected: list[Job] = []
        self._places = places
        self._page_tokens = page_tokens
        self._ask_policy = decide
        self._find_compute = find_compute
        self._sources: Counter[str] = Counter()
        self._attributed: set[int] = set()
        # Of those whose ends are fetched while they compute, what they had at hand first.
        self._parted: dict[int, Counter[str]] = {}

    @property
    def sources(self) -> Mapping[str, int]:
        """Where the tokens of all prompts came from that were begun, each at its first time."""
        return {name: self._sources[name] for name in (DEVICE, *self._places, COMPUTED)}

    def expect(self, job: Job) -> None:
        """It queues, and is to ask before the next step."""
        self._expected.append(job)

    def take_expected(self) -> list[Job]:
        """Who has queued since the last call."""
        expected, self._expected = self._expected, []
        return expected

    def ask(self, job: Job, now_s: float) -> Want | None:
        """Want what the device lacks of its prompt; one token is always computed."""
        page = self._page_tokens
        job.want = self.store.ask(job, job.matched // page, (job.target - 1) // page, now_s)
        return job.want

    def part(self, job: Job, pages: int, now_s: float) -> None:
        """It computes its next `pages` pages while those behind them are fetched."""
        want, page = job.want, self._page_tokens
        if want is None:
            return
        first = want.first + pages
        job.tail = self.store.ask(job, first, (job.target - 1) // page, now_s)
        if job.tail is not None:
            self.store.cancel(want)
            job.meet = first * page

    def rejoin(self, job: Job, now_s: float) -> Want:
        """It has computed so far, and wants what has been fetched."""
        tail, job.tail = job.tail, None
        assert tail is not None
        tail.waits_s = now_s
        job.want = tail
        return tail

    def has_met(self, job: Job) -> bool:
        """Whether it begins for the second time, at what was fetched for it."""
        return job.tail is None and job.index in self._parted and job.index not in self._attributed

    def save(self, job: Job, before: int, now_s: float) -> None:
        """What it has computed behind `before` tokens can be found by others."""
        page = self._page_tokens
        self.store.save(job, before // page, min(job.done, job.prompt) // page, now_s)

    def leave(self, job: Job) -> None:
        """It waits no more, for whatever reason."""
        self._end_want(job)
        if job.tail is not None:
            self.store.release(job.tail)
            job.tail = None

    def start(self, job: Job) -> None:
        """Its first step begins, with what has arrived of its pages; it wants nothing more but what
        is fetched while it computes.
        """
        self._attribute(job)
        self._end_want(job)

    def _end_want(self, job: Job) -> None:
        self.holds.drop(job)
        if job.want is not None:
            self.store.release(job.want)
            job.want = None

    def _attribute(self, job: Job) -> None:
        if job.index in self._attributed:
            return
        page = self._page_tokens
        found: Counter[str] = Counter()
        if job.want is not None and job.loaded:
            end = job.matched // page - job.want.first
            for place in job.want.origins[end - job.loaded : end]:
                found[self._places[place]] += page
        before = self._parted.get(job.index)
        if before is None:
            found[DEVICE] = job.matched - job.loaded * page
        else:
            found += before
        if job.tail is not None:
            self._parted[job.index] = found
            return
        self._attributed.add(job.index)
        self._sources += found
        self._sources[COMPUTED] += job.target - found.total()

    def _decide(self, job: Job, want: Want, now_s: float) -> RestorePlan:
        compute = self._find_compute()
        view = RestoreView(
            asked_s=want.waits_s,
            deadline_s=want.due_s,
            prompt_tokens=job.target,
            device_tokens=want.first * self._page_tokens,
            page_tokens=self._page_tokens,
            page_bytes=self.store.page_bytes,
            known=want.known,
            arrived_pages=want.arrived,
            # Nobody else computes for this instance.
            coming_pages=0,
            is_settled=want.is_settled,
            prices=compute.prices,
            delayed_requests=compute.delayed_requests + self.holds.count_others(job),
            tiers=self.store.view_tiers(want, now_s),
            can_meet=compute.can_meet,
        )
        return self._ask_policy(view, now_s)
