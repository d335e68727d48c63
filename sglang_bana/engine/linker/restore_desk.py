"""Asks the restore policy about a waiting request, records the answer, and excuses its faults."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import msgspec

from bana.radix_global.messages import TierWeather
from bana.slo.decisions import RestoreRecord, seed_decision
from bana.slo.fetching import ComputeView
from bana.slo.laws import require_restore
from bana.slo.restore import RestorePlan, RestorePolicy, RestoreReason, RestoreView, TierView
from sglang_bana.engine.linker.counts import LinkerCounts
from sglang_bana.engine.linker.wanted import Wanted
from sglang_bana.engine.scheduling.decision_log import DecisionLog
from sglang_bana.engine.scheduling.effects import carries_state

logger = logging.getLogger(__name__)


class PageSize(msgspec.Struct, frozen=True):
    """A page of this engine's KV."""

    tokens: int
    size_bytes: int


class RestoreDesk:
    """One engine's decisions to fetch or recompute; the scheduler's thread alone calls it.

    `find_compute` says what computing costs, `find_weather` what reading does. A policy that fails
    is counted and told once, and its request goes on with what has arrived.
    """

    def __init__(
        self,
        policy: RestorePolicy,
        seed: int,
        page: PageSize,
        find_compute: Callable[[], ComputeView],
        find_weather: Callable[[], tuple[TierWeather, ...]],
        counts: LinkerCounts,
    ) -> None:
        self.log: DecisionLog | None = None
        self.reasons: Counter[str] = Counter()
        self._policy = policy
        self._seed = seed
        self._page = page
        self._find_compute = find_compute
        self._find_weather = find_weather
        self._counts = counts
        self._rng = Random()
        self._number = 0

    @property
    def asks(self) -> bool:
        """Whether the store is asked at all."""
        return self._policy.asks

    def decide(self, req: Any, wanted: Wanted, now_s: float) -> RestorePlan:
        """How many of its pages the request waits for, and until when."""
        self._number += 1
        seed_decision(self._rng, self._seed, self._number)
        view = self._view(req, wanted, now_s)
        try:
            answer = self._policy.decide_restore(view, now_s, self._rng)
            plan = require_restore(answer, view, now_s)
        except Exception:
            self._counts.faults += 1
            if self._counts.faults == 1:
                logger.exception("bana: the restore policy failed; what has arrived is used")
            return RestorePlan(view.arrived_pages, now_s, RestoreReason.FIXED)
        if self.log is not None:
            self.log.write(RestoreRecord(self._number, now_s, view, plan))
        return plan

    def price_rest_s(self, req: Any, device_tokens: int) -> float | None:
        """What computing the prompt behind so many of its tokens takes here, None where nobody can
        tell.
        """
        prices = self._find_compute().prices
        if prices is None:
            return None
        return prices.estimate_prefill_s(req.seqlen - device_tokens, device_tokens)

    def note_end(self, plan: RestorePlan) -> None:
        """The request is held no longer, by this plan."""
        self.reasons[plan.reason] += 1

    def _view(self, req: Any, wanted: Wanted, now_s: float) -> RestoreView:
        compute = self._find_compute()
        return RestoreView(
            asked_s=wanted.waits_s,
            deadline_s=wanted.due_s,
            prompt_tokens=req.seqlen,
            device_tokens=wanted.first * self._page.tokens,
            page_tokens=self._page.tokens,
            page_bytes=self._page.size_bytes,
            known=wanted.want.known,
            arrived_pages=wanted.want.arrived_pages,
            coming_pages=wanted.want.coming,
            is_settled=wanted.is_settled,
            prices=compute.prices,
            delayed_requests=compute.delayed_requests,
            can_meet=compute.can_meet and not carries_state(req),
            tiers=view_tiers(self._find_weather(), wanted, now_s),
        )


def view_tiers(
    weather: Iterable[TierWeather], wanted: Wanted, now_s: float
) -> tuple[TierView, ...]:
    """Each tier as this request sees it: of what was to be read before its own pages, as much is
    left as the tier has not had the time to read since.
    """
    ahead = {tier.place: tier.backlog_bytes for tier in wanted.want.tiers}
    elapsed_s = now_s - wanted.asked_s
    return tuple(
        TierView(
            place=tier.place,
            bytes_per_s=tier.bytes_per_s,
            latency_s=tier.latency_s,
            ahead_bytes=max(0.0, ahead.get(tier.place, 0) - elapsed_s * tier.bytes_per_s),
        )
        for tier in weather
    )
