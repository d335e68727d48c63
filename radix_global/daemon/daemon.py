"""One store daemon, put together: built, served until told to stop, and closed by a deadline."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import msgspec
import zmq

from bana.radix_global.admin_messages import Answer, Status
from bana.radix_global.daemon.books import BookRules, StoreBooks
from bana.radix_global.daemon.chores import TierChores
from bana.radix_global.daemon.describing import ARENA_NAME, Life, describe_store
from bana.radix_global.daemon.desk import Desk, DeskRules
from bana.radix_global.daemon.gear import ProcessWatch
from bana.radix_global.daemon.kept_pins import KeptPins, PinRecord
from bana.radix_global.daemon.limits import StoreLimits
from bana.radix_global.daemon.loop import DaemonLoop, Parts, open_socket
from bana.radix_global.daemon.pin_desk import PinDesk
from bana.radix_global.daemon.works import Tier, Works, WorksPlan
from bana.radix_global.pages import IndexLimits
from bana.radix_global.tree import PrefixTree
from bana.slo.clock import DatingClock
from bana.slo.errors import ConfigError


class DaemonPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All that a daemon is told: where it listens, what it grants, what it builds."""

    endpoint: str
    secret: str
    pid: int
    index_pages: int
    max_leases: int
    refresh_s: float
    limits: StoreLimits
    works: WorksPlan


class StoreDaemon:
    """Everything of one daemon; ConfigError where the plan cannot be carried out.

    `say` is told, in a line, who comes and goes.
    """

    def __init__(
        self,
        plan: DaemonPlan,
        tiers: Sequence[Tier],
        processes: ProcessWatch,
        clock: DatingClock,
        say: Callable[[str], None],
        pins: PinRecord,
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._tiers: Mapping[int, Tier] = dict(enumerate(tiers, 1))
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._works = Works(plan.works, self._tiers, clock, self._ring)
        self._chores = tuple(
            TierChores(number, tier.store, clock, plan.refresh_s, self._ring)
            for number, tier in self._tiers.items()
        )
        limits = IndexLimits(
            max_pages=plan.index_pages, tiers=len(tiers), max_leases=plan.max_leases
        )
        self._books = StoreBooks(
            BookRules(plan.works.epoch, plan.index_pages, plan.limits),
            PrefixTree(limits),
            {number: tier.store for number, tier in self._tiers.items()},
            self._works.make_gear,
            processes,
            say,
        )
        names = (ARENA_NAME, *(tier.name for tier in tiers))
        self._desk = Desk(
            DeskRules(plan.secret, names),
            self._books,
            self._chores,
            self._describe,
            PinDesk(self._books, KeptPins(pins, self._books.index, say)),
        )
        self._life = Life(plan.pid, clock.now_s())
        if plan.works.slot_bytes:
            self._open_early(plan.works.slot_bytes, say)

    def serve(self, stop: int) -> None:
        """Serve until the descriptor `stop` is readable; ConfigError where it cannot listen."""
        parts = Parts(self._books, self._desk, self._works, self._chores, self._bell, self._clock)
        with zmq.Context() as context:
            try:
                socket = open_socket(context, self._plan.endpoint)
            except zmq.ZMQError as error:
                raise ConfigError(
                    f"store endpoint {self._plan.endpoint!r}: {error}; choose a shorter directory, "
                    "of this user's"
                ) from error
            with socket:
                for chores in self._chores:
                    chores.start()
                DaemonLoop(parts, socket, stop).run()

    def close(self, timeout_s: float) -> int:
        """End all threads and take the arena's name away; how many threads are stuck.

        A store in which a thread is stuck is left open: closing it might wait as long.
        """
        end_s = self._clock.now_s() + timeout_s
        stuck = self._works.close(timeout_s / 2)
        for chores in self._chores:
            stuck += not chores.close(max(0.0, end_s - self._clock.now_s()))
        if not stuck:
            for tier in self._tiers.values():
                tier.store.close()
            os.close(self._bell)
        return stuck

    def _open_early(self, slot_bytes: int, say: Callable[[str], None]) -> None:
        """Make the arena now. Where clients still map a former one there may be no room yet."""
        try:
            self._books.open_floor(slot_bytes)
        except ConfigError as error:
            say(f"there is no arena yet, the first client tries again: {error}")

    def _ring(self) -> None:
        # A full counter rings already.
        try:
            os.eventfd_write(self._bell, 1)
        except BlockingIOError:
            return

    def _describe(self, number: int) -> Answer:
        now_s = self._clock.now_s()
        report = describe_store(
            self._life, self._books, self._desk, self._works, self._tiers, now_s
        )
        return Status(number, report)
