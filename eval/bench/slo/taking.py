"""Takes the points of one workload: a side that is up and warm is offered requests at a rate."""

from __future__ import annotations

import os

import msgspec

from bana.eval.bench.errors import BenchError
from bana.eval.bench.harness import Session
from bana.eval.bench.slo.points import (
    PointSeen,
    read_isolated,
    read_point,
    take_isolated,
    take_point,
)
from bana.eval.bench.slo.settings import PromiseSettings, SloWorkload
from bana.eval.bench.slo.sides import Fleet, Served, SloSide
from bana.eval.bench.slo.workloads import Ask, find_trace, offer_requests
from bana.eval.bench.trials import Values
from bana.eval.client.isolated import Isolated
from bana.eval.requests import Workload


class Draw(msgspec.Struct, frozen=True):
    """Which requests: so many of repetition `seed`, at a rate."""

    seed: int
    rate_rps: float
    requests: int


class Taker:
    """Every measurement is a trial of the session's.

    A server meets `first_requests` before any that count.
    """

    def __init__(
        self,
        session: Session,
        settings: PromiseSettings,
        workload: SloWorkload,
        fleet: Fleet,
        first_requests: int,
    ) -> None:
        self._session = session
        self._settings = settings
        self._workload = workload
        self._fleet = fleet
        self._first_requests = first_requests
        self._trace = find_trace(workload.shape, os.environ)

    def take(self, side: SloSide, where: str, draw: Draw, isolated: Isolated) -> PointSeen:
        """One point, which `where` names among those of this side and rate."""
        name = f"{self._workload.name}, {where}, {side.name} at {draw.rate_rps:.4g}/s"
        values = self._session.run_trial(name, lambda: self.measure(side, draw, isolated))
        return read_point(values)

    def measure(self, side: SloSide, draw: Draw, isolated: Isolated) -> Values:
        """What a point gives, not kept yet."""
        return self._offer_to(self.reach(side, isolated), draw, isolated)

    def reach(self, side: SloSide, isolated: Isolated) -> Served:
        """The server of a side, which has met its first requests."""
        if self._fleet.is_up(side):
            return self._fleet.reach(side)
        served, rate_rps = self._fleet.reach(side), 2 * self._workload.start_rps
        first = Draw(self._settings.seeds, rate_rps, self._first_requests)
        self._offer_to(served, first, isolated)
        return served

    def learn_isolated(self, side: SloSide, where: str) -> Isolated:
        """How fast the idle side answers the lengths of a seed that is not scored."""
        return self._learn(side, where, self._offer_unscored())

    def learn_tpot_s(self, side: SloSide, where: str) -> float:
        """How fast the idle side is now, by a few answers to one prompt of middling length."""
        offered = self._offer_unscored()
        by_length = sorted(offered.requests, key=lambda request: request.prompt_tokens)
        single = msgspec.structs.replace(offered, requests=(by_length[len(by_length) // 2],))
        return require_tpot_s(self._learn(side, f"{where}, pace of {side.name}", single))

    def offer(self, draw: Draw) -> Workload:
        """The requests of a draw, promised nothing yet."""
        settings = self._settings
        ask = Ask(
            seed=self._session.seed_of(draw.seed),
            rate_rps=draw.rate_rps,
            requests=draw.requests,
            warmup_requests=settings.warmup_requests,
            first_token_id=settings.first_token_id,
            last_token_id=settings.last_token_id,
            max_input_tokens=settings.max_input_tokens,
        )
        return offer_requests(self._workload.shape, ask, self._trace)

    def _offer_unscored(self) -> Workload:
        return self.offer(Draw(self._settings.seeds, 1.0, self._settings.requests))

    def _learn(self, side: SloSide, where: str, offered: Workload) -> Isolated:
        def measure() -> Values:
            served = self._fleet.reach(side)
            return take_isolated(self._session, self._settings, served, offered)

        return read_isolated(self._session.run_trial(f"{self._workload.name}, {where}", measure))

    def _offer_to(self, served: Served, draw: Draw, isolated: Isolated) -> Values:
        return take_point(self._session, self._settings, served, self.offer(draw), isolated)


def require_tpot_s(isolated: Isolated) -> float:
    """The TPOT of the idle side; BenchError where its answers had one token each."""
    if isolated.tpot_s is None:
        raise BenchError("single requests were answered with single tokens: no TPOT was seen")
    return isolated.tpot_s
