"""Fetch as much as makes the first token earliest, within the budget, for all who wait.

candidate f: fetch pages up to f, then compute the rest
    arrival(f) + compute(f) · (weight of the engine, and who waits)     ─▶ smallest, among
    arrival(f) + guard · compute(f) <= what is left of the budget       ─▶ those that keep it
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from random import Random
from typing import Annotated

import msgspec
import numpy as np

from bana.slo.fetching import (
    Candidates,
    RestoreView,
    list_candidates,
    list_meetings,
    price_rest_s,
)
from bana.slo.restore_plan import (
    RestorePlan,
    RestoreReason,
    await_answer,
    count_expected,
    is_complete,
    stop,
)
from bana.slo.steps import EnginePrices


@dataclasses.dataclass(frozen=True)
class PlannedOptions:
    """A second of this engine counts as `engine` seconds of waiting, and as `others` more for each
    request that waits besides: more than 1, since others will come before it is through. At most
    `most_others` of them count, or a long queue would wait for a slow tier. A wait may last `slack`
    times as long as predicted before it is thought over, `worth` times what the pages can save in
    all, and `most_s` whatever they save; `guard` times what is left to compute is kept free before
    the deadline. What others compute for this engine is waited for up to `elsewhere` times what it
    would take here: they have queues. With `meet`, where nobody waits for the engine, the first
    pages of a prompt may be computed while those behind them are fetched.
    """

    engine: Annotated[float, msgspec.Meta(ge=1, le=10)] = 1.5
    others: Annotated[float, msgspec.Meta(ge=0, le=10)] = 3.0
    most_others: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 4
    slack: Annotated[float, msgspec.Meta(ge=1, le=10)] = 1.25
    worth: Annotated[float, msgspec.Meta(gt=0, le=10)] = 1.0
    most_s: Annotated[float, msgspec.Meta(gt=0, le=600)] = 60.0
    guard: Annotated[float, msgspec.Meta(ge=1, le=10)] = 1.25
    elsewhere: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 16.0
    meet: bool = False


# A prediction that comes to nothing is thought over again after this, or after a share of the time
# that the request has waited already.
SHORTEST_WAIT_S = 0.002
WAITED_SHARE = 0.125
# A meeting costs steps of its own, and hangs on two predictions: it has to promise so much.
MEETING_SHARE = 0.9


class PlannedRestore:
    """The cheapest mix of fetching and computing that the budget allows, thought over on the way.

    The budget's part is Cascade's cap: of the tiers no more bytes than [B - Σδ]⁺ / Σ(1/B_eff), B
    what is left of the budget beside the rest's service. That all who wait count, and that no wait
    is longer than what it can save (so that it costs at most twice the better choice), is ours.
    """

    asks = True

    def __init__(self, options: PlannedOptions) -> None:
        self._options = options

    def decide_restore(self, view: RestoreView, now_s: float, rng: Random) -> RestorePlan:
        if is_complete(view):
            return stop(view, now_s, RestoreReason.COMPLETE)
        if view.known is None:
            return await_answer(view)
        if view.prices is None:
            until_s = min(view.asked_s + self._options.most_s, view.deadline_s)
            return RestorePlan(count_expected(view), until_s, RestoreReason.UNPRICED)
        if view.coming_pages:
            return min(self._list_patience(view, view.prices), key=_until)
        candidates = list_candidates(view, view.prices)
        chosen = self._choose(view, candidates, now_s)
        meet_page = self._find_meeting(view, candidates, chosen)
        if meet_page:
            return RestorePlan(view.arrived_pages, now_s, RestoreReason.MEET, meet_page)
        if chosen == 0:
            return stop(view, now_s, RestoreReason.COMPUTE)
        return min(self._list_bounds(view, candidates, chosen, now_s), key=_until)

    def _choose(self, view: RestoreView, candidates: Candidates, now_s: float) -> int:
        """The cheapest candidate for all, among those that keep the promise; where none does, the
        one with the earliest first token.
        """
        options = self._options
        first_s = candidates.arrival_s + options.guard * candidates.compute_s
        keeps = first_s <= view.deadline_s - now_s
        if not keeps.any():
            return int(np.argmin(candidates.arrival_s + candidates.compute_s))
        cost_s = candidates.arrival_s + self._weight(view) * candidates.compute_s
        return int(np.argmin(np.where(keeps, cost_s, np.inf)))

    def _find_meeting(self, view: RestoreView, candidates: Candidates, chosen: int) -> int:
        """The page at which computing meets fetching, 0 where that is no better than `chosen`."""
        options = self._options
        if not options.meet or not view.can_meet or view.delayed_requests or view.prices is None:
            return 0
        meetings = list_meetings(view, view.prices)
        if not meetings.pages.size:
            return 0
        engine_s = meetings.compute_s + meetings.rest_s
        first_s = np.maximum(meetings.compute_s, meetings.arrival_s) + meetings.rest_s
        cost_s = first_s + (options.engine - 1) * engine_s
        best = int(np.argmin(cost_s))
        other_s = candidates.arrival_s[chosen] + self._weight(view) * candidates.compute_s[chosen]
        is_better = cost_s[best] < MEETING_SHARE * other_s
        return int(meetings.pages[best]) if is_better else 0

    def _weight(self, view: RestoreView) -> float:
        """What a second of this engine costs: this request, those who wait, those who will come."""
        options = self._options
        return options.engine + options.others * min(view.delayed_requests, options.most_others)

    def _list_bounds(
        self, view: RestoreView, candidates: Candidates, chosen: int, now_s: float
    ) -> Iterator[RestorePlan]:
        options = self._options
        pages, known = int(candidates.pages[chosen]), len(view.known or b"")
        patience_s = max(SHORTEST_WAIT_S, WAITED_SHARE * (now_s - view.asked_s))
        wait_s = options.slack * float(candidates.arrival_s[chosen]) + patience_s
        reason = RestoreReason.FETCH if pages == known else RestoreReason.PARTIAL
        yield RestorePlan(pages, now_s + wait_s, reason)
        saved_s = self._weight(view) * self._saved_s(view, candidates)
        yield RestorePlan(pages, view.asked_s + options.worth * saved_s, RestoreReason.WORTH)
        yield from self._list_limits(view, pages, float(candidates.compute_s[0]))

    def _list_patience(self, view: RestoreView, prices: EnginePrices) -> Iterator[RestorePlan]:
        """Computing here is what others are to spare this engine: while the budget allows, and they
        are not much slower.
        """
        options, pages = self._options, count_expected(view)
        whole_s, left_s = price_rest_s(view, prices, np.array([0, view.arrived_pages])).tolist()
        patience_s = options.elsewhere * whole_s
        yield RestorePlan(pages, view.asked_s + patience_s, RestoreReason.ELSEWHERE)
        yield from self._list_limits(view, pages, left_s)

    def _list_limits(self, view: RestoreView, pages: int, left_s: float) -> Iterator[RestorePlan]:
        """What bounds every wait: its length, and the last moment at which computing what has not
        arrived keeps the deadline. One that computing cannot keep bounds nothing: pages may.
        """
        longest_s = view.asked_s + self._options.most_s
        yield RestorePlan(pages, longest_s, RestoreReason.LONGEST)
        latest_s = view.deadline_s - self._options.guard * left_s
        if latest_s > view.asked_s:
            yield RestorePlan(pages, latest_s, RestoreReason.BUDGET)

    def _saved_s(self, view: RestoreView, candidates: Candidates) -> float:
        """What all known pages save, those included that have arrived."""
        assert view.prices is not None
        nothing_s = float(price_rest_s(view, view.prices, np.zeros(1, np.int64))[0])
        return max(0.0, nothing_s - float(candidates.compute_s[-1]))


def _until(plan: RestorePlan) -> float:
    return plan.until_s
