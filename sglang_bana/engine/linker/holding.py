"""Which waiting requests are passed over while pages are on their way to them.

queue   [r1  r2  r3  r4]   r2 and r3 are held
pass    [r1      r4]       admission sees these
queue   [r1  r2  r3  r4]   as it was, less who was admitted
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import not_
from typing import Any

import msgspec

from bana.slo.restore import RestorePlan, RestoreReason
from sglang_bana.engine.linker.counts import LinkerCounts
from sglang_bana.engine.linker.restore_desk import RestoreDesk
from sglang_bana.engine.linker.wanted import Wanted
from sglang_bana.engine.stay import stay_of

# The store answers in about a millisecond.
ANSWER_WAIT_S = 0.003


class HoldsEnded(msgspec.Struct, frozen=True):
    """Rank 0 tells all ranks: these requests are held no longer, and so many pages have arrived
    there for each. Those with a page in `meet_pages` compute what comes before it meanwhile; empty
    where there are none.
    """

    rids: tuple[str, ...]
    arrived_pages: tuple[int, ...] = ()
    meet_pages: tuple[int, ...] = ()


@dataclass
class Held:
    """One held request, until when by what was known at the last look, and whether that was the
    store's answer.
    """

    req: Any
    wanted: Wanted
    plan: RestorePlan
    was_answered: bool

    @property
    def has_news(self) -> bool:
        """Whether something has happened that the plan waits for."""
        want = self.wanted.want
        if want.outcome is not None or want.known is None:
            return want.outcome is not None
        return not self.was_answered or want.arrived_pages >= self.plan.pages


class Holds:
    """The held requests; only the scheduler's thread calls it.

    Every rank holds and releases alike: whom to release is decided on one. A look at them takes
    O(held) when something has arrived or a hold ends, and O(1) otherwise; a decision is made for
    those whose plan it concerns.
    """

    def __init__(self, desk: RestoreDesk, counts: LinkerCounts) -> None:
        self._desk = desk
        self._counts = counts
        self._held: dict[str, Held] = {}
        self._next_end_s = math.inf
        self._answer_due_s = -math.inf

    def __len__(self) -> int:
        return len(self._held)

    def split(self, queue: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Who of the queue is to be seen by a pass, and who is held. O(queue)."""
        held = {id(held.req) for held in self._held.values()}
        is_held = list(map(held.__contains__, map(id, queue)))
        return list(compress(queue, map(not_, is_held))), list(compress(queue, is_held))

    @property
    def rids(self) -> tuple[str, ...]:
        """Who is held."""
        return tuple(self._held)

    @property
    def next_end_s(self) -> float:
        """No hold ends by itself before that; infinite where nobody is held."""
        return self._next_end_s

    def answer_wait_s(self, now_s: float) -> float:
        """How long this pass may still wait for the store's word on who has just asked: a pass that
        goes on without it costs them a whole step. O(1), O(held) just after somebody has asked.
        """
        is_asked = now_s < self._answer_due_s and any(
            held.wanted.want.known is None and not held.wanted.is_settled
            for held in self._held.values()
        )
        return self._answer_due_s - now_s if is_asked else 0.0

    def add(self, req: Any, wanted: Wanted, now_s: float) -> None:
        """Hold the request from now on."""
        self._answer_due_s = max(self._answer_due_s, wanted.asked_s + ANSWER_WAIT_S)
        was_answered = wanted.want.known is not None
        held = Held(req, wanted, self._desk.decide(req, wanted, now_s), was_answered)
        self._held[req.rid] = held
        self._next_end_s = min(self._next_end_s, held.plan.until_s)

    def has(self, req: Any) -> bool:
        """Whether the request is held."""
        return req.rid in self._held

    def find_meeting(self, rid: str) -> int:
        """The page at which the request is to look again, 0 for none."""
        held = self._held.get(rid)
        return 0 if held is None else held.plan.meet_page

    def end(self, rids: Iterable[str]) -> list[Any]:
        """Hold these no longer; the requests among them that were held."""
        ended = [self._held.pop(rid).req for rid in rids if rid in self._held]
        for req in ended:
            stay_of(req).is_elsewhere = False
        if not self._held:
            self._next_end_s = math.inf
        return ended

    def end_all(self) -> None:
        """Hold nobody."""
        self.end(list(self._held))

    def refresh(self, now_s: float) -> None:
        """Something has arrived, or will not: think over whom that concerns."""
        concerned = [held for held in self._held.values() if held.has_news]
        if concerned:
            self._think_over(concerned, now_s)

    def find_over(self, now_s: float) -> tuple[str, ...]:
        """Who need not be held any longer."""
        if now_s < self._next_end_s:
            return ()
        # What computing and reading take has changed since.
        self._think_over([h for h in self._held.values() if h.plan.until_s <= now_s], now_s)
        over = {rid: held for rid, held in self._held.items() if held.plan.until_s <= now_s}
        for held in over.values():
            self._counts.late_holds += held.plan.reason is not RestoreReason.COMPLETE
            self._desk.note_end(held.plan)
        return tuple(over)

    def _think_over(self, concerned: Iterable[Held], now_s: float) -> None:
        for held in concerned:
            held.was_answered = held.wanted.want.known is not None
            held.plan = self._desk.decide(held.req, held.wanted, now_s)
        ends_s = (held.plan.until_s for held in self._held.values())
        self._next_end_s = min(ends_s, default=math.inf)


def merge_back(before: Sequence[Any], passed: Sequence[Any], held: Iterable[Any]) -> list[Any]:
    """The queue after a pass that saw it without `held`: these keep their places among the others,
    as far as the pass has left the others in order. O(queue).
    """
    kept = set(map(id, held))
    merged: list[Any] = []
    rest = iter(passed)
    first = next(rest, None)
    for req in before:
        if req is first:
            merged.append(req)
            first = next(rest, None)
        elif id(req) in kept:
            merged.append(req)
    # Who came during the pass, or was put elsewhere.
    return merged if first is None else [*merged, first, *rest]
