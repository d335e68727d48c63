"""Which instance a request goes to, and the wait for one that has room.

Thousands of requests in one instant make an instance's HTTP late, and overflow the queue of
connections that its kernel keeps, so each holds at most `max_unanswered_per_instance` that it has
not begun to answer. The others wait here, the oldest first, and go to whichever has room first.
How many streams run at an instance is its own affair.

seek ──▶ has room ──▶ seated ──free──▶ the next one that fits
  └───▶ all full ───▶ waiting ──▲        └ cut (drain, abort), or past its first-byte deadline
  └───▶ nobody up ──▶ refused, or asks again where that is worth a moment
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from bisect import insort
from collections import Counter
from collections.abc import Container

from sglang_bana.config import LimitsConfig
from sglang_bana.router.call import Call
from sglang_bana.router.dispatch import Dispatcher
from sglang_bana.router.errors import ApiError
from sglang_bana.router.flights import Cut, Flight
from sglang_bana.router.instances import Instance, InstanceBoard
from sglang_bana.router.losses import Loss, Trail, explain_cut
from sglang_bana.router.retry import retry_headers
from sglang_bana.status import InstanceState

RETRY_PATIENCE_S = 5.0
POLL_S = 0.05


@dataclasses.dataclass(slots=True, eq=False)
class Seeker:
    """One request that looks for a place; `seat` is where it hears of one."""

    flight: Flight
    call: Call
    trail: Trail
    seat: asyncio.Future[Instance]


class Places:
    """The places at all instances, and who waits for one. Waiting is bounded as flights are."""

    def __init__(self, board: InstanceBoard, dispatcher: Dispatcher, limits: LimitsConfig) -> None:
        self.board = board
        self._dispatcher = dispatcher
        self._limits = limits
        self._known_by_s = time.monotonic() + limits.start_wait_s
        self._seated: dict[Flight, Instance] = {}
        self._taken: Counter[str] = Counter()
        self._waiting: list[Seeker] = []
        board.listen(self._follow)

    async def take(self, flight: Flight, call: Call, trail: Trail) -> Instance:
        """Where the next attempt goes, until `free`; ApiError without any place."""
        began_s = time.monotonic()
        while True:
            if flight.cut is Cut.DRAIN or (trail.losses and self._left_s(flight) < 0):
                raise explain_cut(flight, "no instance answered within the server's limit")
            seeker = Seeker(flight, call, trail, asyncio.get_running_loop().create_future())
            try:
                return self._seat(seeker) or await self._wait(seeker)
            except ApiError as error:
                if error.code != "no_instance" or not self._may_ask_again(seeker, began_s):
                    raise
            await asyncio.sleep(POLL_S)

    def free(self, flight: Flight) -> None:
        """Its attempt is being answered, or has ended however; may be said again."""
        instance = self._seated.pop(flight, None)
        if instance is not None:
            self._taken[instance.name] -= 1
            self._serve()

    def _left_s(self, flight: Flight) -> float:
        """For how long its client may still wait for a first byte."""
        return flight.arrival_s + self._limits.first_byte_timeout_s - time.monotonic()

    def _may_ask_again(self, seeker: Seeker, began_s: float) -> bool:
        """Whether it is worth waiting for anybody to come up, while nobody is."""
        flight, trail, now_s = seeker.flight, seeker.trail, time.monotonic()
        if not trail.losses:
            return now_s < self._known_by_s and not self.board.is_known()
        if Loss.MOVED in trail.losses:
            # It was its own place that it was made to leave.
            return self._left_s(flight) > 0
        has_others = any(i.name not in trail.lost_at for i in self.board.all())
        return has_others and now_s < min(began_s + RETRY_PATIENCE_S, flight.retry_by_s)

    async def _wait(self, seeker: Seeker) -> Instance:
        flight = seeker.flight
        insort(self._waiting, seeker, key=_arrival_s)
        flight.is_waiting = True
        try:
            async with asyncio.timeout(self._left_s(flight)) as flight.scope:
                return await seeker.seat
        except TimeoutError:
            self._give_up(seeker)
            raise explain_cut(flight, "no instance had room within the server's limit") from None
        except asyncio.CancelledError:
            self._give_up(seeker)
            raise
        finally:
            flight.scope, flight.is_waiting = None, False

    def _give_up(self, seeker: Seeker) -> None:
        """It waits no longer, whatever it may have been given in this very moment."""
        if seeker in self._waiting:
            self._waiting.remove(seeker)
        else:
            self.free(seeker.flight)

    def _follow(self, _: Instance, __: InstanceState) -> None:
        self._serve()

    def _serve(self) -> None:
        """Seat whoever fits, the oldest first; refuse everybody once nobody is left to wait for."""
        place = 0
        while place < len(self._waiting) and (self._list_free() or not self.board.is_alive()):
            if self._offer(self._waiting[place]):
                del self._waiting[place]
            else:
                place += 1

    def _offer(self, seeker: Seeker) -> bool:
        """Whether it has been told something, so that it waits no longer."""
        if seeker.seat.done():
            # It is about to leave by itself.
            return False
        try:
            instance = self._seat(seeker)
        except ApiError as error:
            seeker.seat.set_exception(error)
            return True
        if instance is not None:
            seeker.seat.set_result(instance)
        return instance is not None

    def _seat(self, seeker: Seeker) -> Instance | None:
        """Take a place for it now; None while everybody that it could go to is full."""
        instance = self._choose(seeker)
        if instance is not None:
            self._seated[seeker.flight] = instance
            self._taken[instance.name] += 1
        return instance

    def _choose(self, seeker: Seeker) -> Instance | None:
        call, trail = seeker.call, seeker.trail
        if call.owner is not None:
            return self._choose_owner(call.owner)
        friend, avoided = call.friend, {*trail.lost_at, trail.left}
        if friend is not None and self._may_go(friend) and friend.name not in avoided:
            return friend
        free = self._list_free(avoided) or self._list_free(trail.lost_at)
        if not free:
            self._check_usable(trail.lost_at)
            return None
        slo = seeker.flight.slo
        slo_class = "" if slo is None else slo.slo_class
        return self._dispatcher.choose(free, call.shape, call.prompt, slo_class, time.monotonic())

    def _check_usable(self, excluded: set[str]) -> None:
        if not self.board.usable(excluded):
            raise ApiError(
                503,
                "no_instance",
                "no instance can take the request now; try again later",
                headers=retry_headers(1.0),
            )

    def _choose_owner(self, owner: Instance) -> Instance | None:
        if owner.state is InstanceState.UP:
            return owner if self._may_go(owner) else None
        raise ApiError(
            503,
            "owner_unavailable",
            f"instance {owner.name}, which holds the session or response, is {owner.state}; "
            "try again later",
            headers=retry_headers(1.0),
        )

    def _may_go(self, instance: Instance) -> bool:
        """Whether it is up and has room."""
        taken = self._taken[instance.name]
        is_up = instance.state is InstanceState.UP
        return is_up and taken < self._limits.max_unanswered_per_instance

    def _list_free(self, excluded: Container[str] = ()) -> list[Instance]:
        return [i for i in self.board.usable(excluded) if self._may_go(i)]


def _arrival_s(seeker: Seeker) -> float:
    return seeker.flight.arrival_s
