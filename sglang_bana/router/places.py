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
from collections.abc import Collection, Container

from bana.slo.roles import Work
from sglang_bana.config import LimitsConfig
from sglang_bana.router.call import Call
from sglang_bana.router.dispatch import Dispatcher
from sglang_bana.router.errors import ApiError
from sglang_bana.router.flights import Cut, Flight
from sglang_bana.router.handoff_rules import find_work
from sglang_bana.router.instances import Instance, InstanceBoard
from sglang_bana.router.losses import Loss, Trail, explain_cut
from sglang_bana.router.retry import retry_headers
from sglang_bana.router.roles import Roles
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

    def __init__(
        self, board: InstanceBoard, roles: Roles, dispatcher: Dispatcher, limits: LimitsConfig
    ) -> None:
        self.board = board
        self._roles = roles
        self._dispatcher = dispatcher
        self._limits = limits
        self._known_by_s = time.monotonic() + limits.start_wait_s
        self._seated: dict[object, Instance] = {}
        self._taken: Counter[str] = Counter()
        self._waiting: list[Seeker] = []
        board.listen(self._follow)
        roles.listen(self._serve)

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

    def has_room(self, instance: Instance) -> bool:
        """Whether it is up and may get one more."""
        taken = self._taken[instance.name]
        is_up = instance.state is InstanceState.UP
        return is_up and taken < self._limits.max_unanswered_per_instance

    def hold(self, guest: object, instance: Instance) -> None:
        """Take a place for something that does not wait for one, until `free`."""
        self._seated[guest] = instance
        self._taken[instance.name] += 1

    def free(self, guest: object) -> None:
        """The attempt of `guest`, a flight or a prefill, is being answered, or has ended however.

        May be said again.
        """
        instance = self._seated.pop(guest, None)
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
        if not self._waiting:
            return
        place, full = 0, self._list_full()
        while place < len(self._waiting) and (Work.ANY not in full or not self.board.is_alive()):
            seeker = self._waiting[place]
            if not self._is_in_vain(seeker, full) and self._offer(seeker):
                del self._waiting[place]
                full = self._list_full()
            else:
                place += 1

    def _list_full(self) -> frozenset[Work]:
        """For which work nobody has room."""
        works = tuple(Work) if self._roles.is_mixed else (Work.ANY,)
        return frozenset(work for work in works if not self._list_free((), work))

    def _is_in_vain(self, seeker: Seeker, full: Container[Work]) -> bool:
        """Whether only those have room whose role it is not, so that it need not be tried."""
        if not self._roles.is_mixed or Work.ANY in full or seeker.trail.losses:
            return False
        return seeker.call.owner is None and find_work(seeker.call) in full

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
            self.hold(seeker.flight, instance)
        return instance

    def _choose(self, seeker: Seeker) -> Instance | None:
        call, trail = seeker.call, seeker.trail
        if call.owner is not None:
            return self._choose_owner(call.owner)
        friend, avoided = call.friend, {*trail.lost_at, trail.left}
        work = find_work(call) if self._roles.is_mixed else Work.ANY
        free = self._list_free(avoided, work) or self._list_free(trail.lost_at, work)
        if friend in free and friend.name not in avoided:
            return friend
        if not free:
            self._check_usable(trail.lost_at)
            return None
        return self._dispatcher.choose(free, call, seeker.flight.slo_class, time.monotonic())

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
            return owner if self.has_room(owner) else None
        raise ApiError(
            503,
            "owner_unavailable",
            f"instance {owner.name}, which holds the session or response, is {owner.state}; "
            "try again later",
            headers=retry_headers(1.0),
        )

    def _list_free(self, excluded: Collection[str], work: Work) -> list[Instance]:
        """Who has room among those that may get such work."""
        if work is Work.ANY:
            usable = self.board.usable(excluded)
        else:
            usable = self._roles.usable(work, excluded)
        return [i for i in usable if self.has_room(i)]


def _arrival_s(seeker: Seeker) -> float:
    return seeker.flight.arrival_s
