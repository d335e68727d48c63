"""The simulated store: answers, reads what is wanted, keeps what was computed; event by event.

ask ─ answer_s ─▶ known: leased ─▶ in the arena: arrived
                                └▶ on tiers: read, lot by lot, most urgent want first ─▶ arrived
computed ─▶ arena ─ deferred, or in turn with reads ─▶ every tier
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from enum import IntEnum
from random import Random

import msgspec
import numpy as np

from bana.eval.simulator.jobs import Job
from bana.eval.simulator.prefixes import PrefixPlan
from bana.eval.simulator.store.page_map import ARENA, IN_ARENA, PageIds, PageMap
from bana.eval.simulator.store.spec import StoreSpec, Weather, Writes
from bana.eval.simulator.store.tier import Tier
from bana.eval.simulator.store.want import Want
from bana.slo.fetching import TierView

# Its own stream, apart from those that are seeded with small numbers.
SEED_SALT = 0x5709E


class _Due(IntEnum):
    """What is due at a moment."""

    ANSWER = 0
    LOT = 1
    WRITTEN = 2


class _Written(msgspec.Struct, frozen=True):
    place: int
    ids: PageIds


class Store:
    """Time comes in and never goes back. `on_arrival` is told whose pages came."""

    def __init__(
        self, plan: PrefixPlan, spec: StoreSpec, seed: int, on_arrival: Callable[[int], None]
    ) -> None:
        self.page_bytes = plan.page_tokens * spec.token_bytes
        self._spec = spec
        self._on_arrival = on_arrival
        rng = Random(seed ^ SEED_SALT)
        self._tiers = [
            Tier(place, tier, spec, self.page_bytes, rng)
            for place, tier in enumerate(spec.tiers.values(), start=1)
        ]
        capacities = [spec.arena_pages, *(t.capacity_pages for t in spec.tiers.values())]
        self._pages = PageMap(plan, capacities)
        self._reading = np.zeros(self._pages.masks.size, np.bool_)
        self._writing = np.zeros(self._pages.masks.size, np.uint8)
        self._came_from = np.zeros(self._pages.masks.size, np.uint8)
        self._blocked: dict[int, list[Want]] = {}
        self._heap: list[tuple[float, int, _Due, Want | Tier | _Written]] = []
        self._sequence = 0
        self._wants = 0
        self._has_news = False

    @property
    def next_s(self) -> float:
        """When something happens by itself; infinite where nothing does."""
        return self._heap[0][0] if self._heap else math.inf

    @property
    def page_map(self) -> PageMap:
        """Where every page is."""
        return self._pages

    def take_news(self) -> bool:
        """Whether an answer, or pages, came for anybody since the last call."""
        has_news, self._has_news = self._has_news, False
        return has_news

    def ask(self, job: Job, first: int, end: int, now_s: float) -> Want | None:
        """Want a prompt's pages from `first` up to, not including, `end`; None for none."""
        ids = self._pages.list_pages(job.path)[first:end]
        if not ids.size:
            return None
        self._wants += 1
        want = Want(self._wants, job.index, first, ids, now_s, job.budget.deadline_s)
        self._schedule(now_s + self._spec.answer_ms / 1e3, _Due.ANSWER, want)
        return want

    def cancel(self, want: Want) -> None:
        """Nothing more is to come for it; what has arrived stays."""
        if want.known is None or want.is_over:
            return
        self._pages.unlease(want.ids[want.arrived : len(want.known)])
        want.known = want.known[: want.arrived]

    def release(self, want: Want) -> None:
        """It has what it gets, or has gone."""
        if want.is_over:
            return
        want.is_over = True
        if want.known is not None:
            self._pages.unlease(want.ids[: len(want.known)])

    def save(self, job: Job, first: int, end: int, now_s: float) -> None:
        """A prompt's pages from `first` up to, not including, `end` were computed."""
        prompt = self._pages.list_pages(job.path)
        self._pages.touch(prompt[:end])
        saved = self._pages.put(ARENA, prompt[first:end])
        self._came_from[saved] = ARENA
        self._advance_blocked(saved)
        for tier in self._tiers:
            bit = 1 << tier.place
            new = saved[(self._pages.masks[saved] | self._writing[saved]) & bit == 0]
            if not new.size:
                continue
            self._writing[new] |= bit
            if self._spec.writes is Writes.SHARED:
                tier.write(new)
                self._begin(tier, now_s)
            else:
                at_s = now_s + self._spec.write_delay_ms / 1e3
                self._schedule(at_s, _Due.WRITTEN, _Written(tier.place, new))

    def advance(self, now_s: float) -> None:
        """Everything that is due by now happens, in its order."""
        while self._heap and self._heap[0][0] <= now_s:
            at_s, _, _, subject = heapq.heappop(self._heap)
            if isinstance(subject, Want):
                self._answer(subject, at_s)
            elif isinstance(subject, Tier):
                self._end_lot(subject, at_s)
            else:
                self._note_written(subject)

    @property
    def patience_s(self) -> float:
        """How long a step waits for an answer."""
        return self._spec.patience_ms / 1e3

    def estimate_copy_s(self, pages: int) -> float:
        """What loading so many pages from the arena takes."""
        return pages * self._spec.copy_page_ms / 1e3

    def view_tiers(self, want: Want, now_s: float) -> tuple[TierView, ...]:
        """Each tier as this request sees it, as the engine's desk shows it."""
        elapsed_s = now_s - want.asked_s
        return tuple(self._view_tier(tier, want, elapsed_s, now_s) for tier in self._tiers)

    def _view_tier(self, tier: Tier, want: Want, elapsed_s: float, now_s: float) -> TierView:
        if self._spec.weather is Weather.TRUE:
            bytes_per_s, latency_s = tier.true_bytes_per_s, tier.true_latency_s
        else:
            bytes_per_s, latency_s = tier.measure_bytes_per_s(now_s), tier.measure_latency_s()
        ahead = want.ahead.get(tier.place, 0.0)
        return TierView(
            place=tier.place,
            bytes_per_s=bytes_per_s,
            latency_s=latency_s,
            ahead_bytes=max(0.0, ahead - elapsed_s * bytes_per_s),
        )

    def _schedule(self, at_s: float, due: _Due, subject: Want | Tier | _Written) -> None:
        heapq.heappush(self._heap, (at_s, self._sequence, due, subject))
        self._sequence += 1

    def _answer(self, want: Want, now_s: float) -> None:
        if want.is_over:
            return
        pages = self._pages
        masks = pages.masks[want.ids]
        gaps = np.flatnonzero(masks == 0)
        known = int(gaps[0]) if gaps.size else masks.size
        known = min(known, pages.count_leasable(want.ids[:known]))
        want.ahead = {
            tier.place: tier.count_ahead(want, pages) * self.page_bytes for tier in self._tiers
        }
        want.known = masks[:known].tobytes()
        ids = want.ids[:known]
        pages.lease(ids)
        pages.touch(ids)
        self._has_news = True
        self._advance_want(want)
        if want.missing.size:
            for tier in self._tiers:
                tier.add(want)
                self._begin(tier, now_s)

    def _begin(self, tier: Tier, now_s: float) -> None:
        if tier.lot is not None:
            return
        lot = tier.begin(self._pages, self._reading, now_s)
        if lot is not None:
            if lot.is_read:
                self._reading[lot.ids] = True
            self._schedule(now_s + lot.time_s, _Due.LOT, tier)

    def _end_lot(self, tier: Tier, now_s: float) -> None:
        lot = tier.end(now_s)
        if lot.is_read:
            self._reading[lot.ids] = False
            self._came_from[lot.ids] = tier.place
            self._advance_blocked(self._pages.put(ARENA, lot.ids))
        else:
            self._note_written(_Written(tier.place, lot.ids))
        self._begin(tier, now_s)

    def _note_written(self, written: _Written) -> None:
        self._writing[written.ids] &= 0xFF ^ (1 << written.place)
        self._pages.put(written.place, written.ids)

    def _advance_blocked(self, came: PageIds) -> None:
        """These pages are in the arena: whoever waited for one of them has it."""
        for page in came.tolist():
            for want in self._blocked.pop(page, ()):
                if not want.is_over:
                    self._advance_want(want)

    def _advance_want(self, want: Want) -> None:
        """Hand it what has come without a gap; it waits for the page that follows."""
        missing = want.missing
        there = self._pages.masks[missing] & IN_ARENA != 0
        gaps = np.flatnonzero(~there)
        count = int(gaps[0]) if gaps.size else missing.size
        if gaps.size:
            self._blocked.setdefault(int(missing[count]), []).append(want)
        if not count:
            return
        promised = np.frombuffer(want.known or b"", np.uint8)[want.arrived :][:count]
        origins = np.where(promised & IN_ARENA, ARENA, self._came_from[missing[:count]])
        want.origins += origins.astype(np.uint8).tobytes()
        self._has_news = True
        self._on_arrival(want.request)
