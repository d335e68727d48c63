"""The requests in flight: admission, deadlines, and cutting one loose from its instance.

admitted ──dispatch──▶ waiting ──first byte──▶ answering ──▶ closed
              ▲            │
              └── moved ───┘      once; at a second suspect it waits on
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum

from bana.slo.limits import Slo
from sglang_bana.config import LimitsConfig
from sglang_bana.router.endpoints import Endpoint
from sglang_bana.router.errors import ApiError
from sglang_bana.router.keys import Grant
from sglang_bana.router.quotas import Quota
from sglang_bana.router.retry import retry_headers


class Cut(StrEnum):
    """Why the front door ended an attempt by itself."""

    MOVED = "moved"
    CRASHED = "crashed"
    FIRST_BYTE = "first_byte_timeout"
    STALL = "stall_timeout"
    DRAIN = "draining"
    ABORTED = "aborted"


@dataclasses.dataclass(slots=True, eq=False)
class Flight:
    """One request on its way. `touched_s` is when its bytes last moved.

    `is_named`: its request id is the client's, not one of ours. `is_in_time`: its first token came
    before the deadline; None where nobody can tell, because none came or it came with the rest.
    `retry_by_s`: until when it may be sent to another instance. `kept_id`: the client's id under
    which the engine is to keep what it makes, a session or a response. `is_waiting`: all instances
    are full.
    """

    request_id: str
    endpoint: Endpoint
    grant: Grant
    arrival_s: float
    touched_s: float
    is_named: bool = False
    slo: Slo | None = None
    retry_by_s: float = math.inf
    client_rid: str | None = None
    kept_id: str | None = None
    rid: str = ""
    rids: tuple[str, ...] = ()
    instance: str = ""
    attempts: int = 0
    is_waiting: bool = False
    answered_s: float | None = None
    is_in_time: bool | None = None
    cut: Cut | None = None
    scope: asyncio.Timeout | None = None

    @property
    def deadline_s(self) -> float:
        """When its first token is due; for ever where nothing was promised."""
        return float("inf") if self.slo is None else self.arrival_s + self.slo.ttft_s

    @property
    def slo_class(self) -> str:
        """The class that it is promised; empty where nothing was."""
        return "" if self.slo is None else self.slo.slo_class

    def may_move(self, now_s: float) -> bool:
        """Whether it may leave a suspect: it has no answer, left none before, and is in time.

        Any other is better off waiting for the instance to come back, or to be proven dead.
        """
        return self.answered_s is None and self.attempts == 1 and now_s < self.retry_by_s

    def cut_loose(self, why: Cut) -> None:
        """End the attempt that is under way; draining ends the next one as well."""
        scope = self.scope if self.cut is None else None
        if scope is None and why is not Cut.DRAIN:
            return
        self.cut = why
        if scope is not None:
            scope.reschedule(asyncio.get_running_loop().time())


class FlightBoard:
    """Every request in flight, by its request id. Bounded by `limits.max_requests`."""

    def __init__(self, limits: LimitsConfig) -> None:
        self._limits = limits
        self._flights: dict[str, Flight] = {}
        self._keys = Quota("API key", "key_overloaded", limits.retry_after_s)
        self._classes = Quota("SLO class", "class_overloaded", limits.retry_after_s)
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._flights)

    def __iter__(self) -> Iterator[Flight]:
        return iter(tuple(self._flights.values()))

    def admit(self, flight: Flight) -> None:
        """Count it in; ApiError 429 when the front door is full, or its key has enough."""
        if len(self._flights) >= self._limits.max_requests:
            raise ApiError(
                429,
                "overloaded",
                f"{len(self._flights)} requests are in flight, allowed: "
                f"{self._limits.max_requests}; try again later",
                headers=retry_headers(self._limits.retry_after_s),
            )
        self._keys.enter(flight, flight.grant.name, flight.grant.max_requests)
        flight.request_id = self._make_unique(flight.request_id)
        self._flights[flight.request_id] = flight
        self._empty.clear()

    def promise(self, flight: Flight, slo: Slo, limit: int | None) -> None:
        """Count it into its class and note its promise; ApiError 429 when the class has enough."""
        flight.slo = slo
        self._classes.enter(flight, slo.slo_class, limit)

    def rename(self, flight: Flight, request_id: str) -> None:
        """Give it the id that its body carries."""
        del self._flights[flight.request_id]
        flight.is_named = True
        flight.request_id = self._make_unique(request_id)
        self._flights[flight.request_id] = flight

    def close(self, flight: Flight) -> None:
        """It has ended, however."""
        self._flights.pop(flight.request_id, None)
        self._keys.leave(flight)
        self._classes.leave(flight)
        if not self._flights:
            self._empty.set()

    async def wait_empty(self, timeout_s: float) -> bool:
        """Whether everything ended within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def find_twin(self, flight: Flight) -> str:
        """Where its caller has another flight for the same `kept_id`; else empty. O(in flight)."""
        for other in self._flights.values():
            is_same = other.kept_id == flight.kept_id and other.grant.name == flight.grant.name
            if is_same and other is not flight and other.instance:
                return other.instance
        return ""

    def move_waiting(self, instance: str, now_s: float) -> None:
        """`instance` is suspect: let those go that wait for a first byte from it and may move."""
        for flight in self:
            if flight.instance == instance and flight.may_move(now_s):
                flight.cut_loose(Cut.MOVED)

    def lose_waiting(self, instance: str) -> None:
        """`instance` is dead: what waits for a first byte from it waits in vain."""
        for flight in self:
            if flight.instance == instance and flight.answered_s is None:
                flight.cut_loose(Cut.CRASHED)

    def sweep(self, now_s: float) -> None:
        """Cut loose what is past its first-byte or stall deadline. O(requests in flight)."""
        for flight in self:
            if not flight.instance:
                # Its body is still read, or it went to every instance: those have deadlines too.
                continue
            quiet_s = now_s - flight.touched_s
            if flight.answered_s is None and quiet_s > self._limits.first_byte_timeout_s:
                flight.cut_loose(Cut.FIRST_BYTE)
            elif flight.answered_s is not None and quiet_s > self._limits.stall_timeout_s:
                flight.cut_loose(Cut.STALL)

    def count_by_instance(self) -> Counter[str]:
        """How many are on each instance now. O(requests in flight)."""
        return Counter(flight.instance for flight in self._flights.values())

    def count_waiting(self) -> int:
        """How many wait in the front door for an instance with room. O(requests in flight)."""
        return sum(flight.is_waiting for flight in self._flights.values())

    def _make_unique(self, request_id: str) -> str:
        if request_id not in self._flights:
            return request_id
        # The bound on flights bounds this search.
        taken = 2
        while f"{request_id}-{taken}" in self._flights:
            taken += 1
        return f"{request_id}-{taken}"
