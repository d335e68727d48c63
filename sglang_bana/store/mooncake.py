"""A client of a Mooncake store: lanes that each make one call at a time, and die when late.

reader, writer, chores ──take a free lane──▶ call ──in time──▶ it is free again
                                              └── late, broken ──▶ killed; a new one at need
"""

from __future__ import annotations

import importlib.util
import queue
from collections.abc import Mapping

from bana.radix_global.stores.counts import Counts
from bana.radix_global.stores.store import ReadOutcome, WriteOutcome
from bana.slo.clock import Clock
from bana.slo.errors import ConfigError, StoreError, StoreTimeout
from sglang_bana.store.lane_process import LaneProcess, Order
from sglang_bana.store.mooncake_lane import Code, Verb
from sglang_bana.store.mooncake_options import MooncakeOptions

MODULE = "mooncake"


class MooncakeClient:
    """See ObjectClient; ConfigError where the first lane cannot be had.

    A call ends within `call_timeout_s`, of which some may pass until a lane is free. A lane
    writes into no memory of this process: what is late cannot spoil a slot that was given on.
    """

    def __init__(self, options: MooncakeOptions, clock: Clock) -> None:
        require_package()
        self._options = options
        self._clock = clock
        self._counts = Counts()
        self._is_closed = False
        self._lanes = tuple(LaneProcess(options, clock) for _ in range(options.lanes))
        # Those that rest come last, else the first ones first, so that no more start than needed.
        self._free: queue.PriorityQueue[tuple[float, int]] = queue.PriorityQueue()
        for number in range(options.lanes):
            self._free.put((0.0, number))
        self._connect()

    def put(self, name: str, header: bytes, payload: memoryview) -> WriteOutcome:
        """See ObjectClient; what does not fit into a lane's buffer is REFUSED."""
        if len(header) + payload.nbytes > self._options.buffer_bytes:
            return WriteOutcome.REFUSED
        code = self._call(Order(Verb.PUT, name, (header, payload)))
        return _PUTS.get(code, WriteOutcome.FAILED)

    def get(self, name: str, header: memoryview, payload: memoryview) -> ReadOutcome:
        """See ObjectClient."""
        code = self._call(Order(Verb.GET, name, received=(header, payload)))
        return _GETS.get(code, ReadOutcome.FAILED)

    def remove(self, name: str) -> WriteOutcome:
        """See ObjectClient."""
        code = self._call(Order(Verb.REMOVE, name))
        return _REMOVALS.get(code, WriteOutcome.FAILED)

    def counts(self) -> Mapping[str, int]:
        """Calls that came to no end: late, broken, or no lane free in time."""
        return self._counts.snapshot()

    def close(self) -> None:
        """See ObjectClient; lanes that are free are waited for, the others only killed."""
        if self._is_closed:
            return
        self._is_closed = True
        for lane in self._lanes:
            lane.kill()
        for _ in self._lanes:
            try:
                _, number = self._free.get(timeout=self._options.call_timeout_s)
            except queue.Empty:
                return
            self._lanes[number].end("the store is closed")

    def _connect(self) -> None:
        lane = self._lanes[0]
        try:
            lane.await_up(self._clock.now_s() + self._options.start_timeout_s)
        except StoreError as error:
            self.close()
            raise ConfigError(
                f"mooncake master {self._options.master}: {error}; correct that, or remove the tier"
            ) from error

    def _call(self, order: Order) -> int:
        """Mooncake's code, or RPC_LATE and RPC_FAILED for our own reasons."""
        if self._is_closed:
            return Code.RPC_FAILED
        timeout_s = self._options.call_timeout_s
        end_s = self._clock.now_s() + timeout_s
        try:
            _, number = self._free.get(timeout=timeout_s)
        except queue.Empty:
            self._counts.add("calls_without_lane")
            return Code.RPC_LATE
        lane = self._lanes[number]
        try:
            return lane.call(order, end_s)
        except StoreTimeout:
            self._counts.add("late_calls")
            return Code.RPC_LATE
        except StoreError:
            self._counts.add("failed_calls")
            return Code.RPC_FAILED
        finally:
            self._free.put((lane.rests_until_s, number))


def require_package() -> None:
    """ConfigError where Mooncake's client is not installed; imports nothing."""
    if importlib.util.find_spec(MODULE) is None:
        raise ConfigError(
            "a mooncake tier needs the Python package of Mooncake, which is not installed; "
            "pip install 'bana[mooncake]', or remove the tier"
        )


_PUTS: Mapping[int, WriteOutcome] = {
    Code.DONE: WriteOutcome.WRITTEN,
    Code.NO_ROOM: WriteOutcome.FULL,
    Code.RPC_LATE: WriteOutcome.LATE,
}
_GETS: Mapping[int, ReadOutcome] = {
    Code.DONE: ReadOutcome.READ,
    Code.OTHER_SIZE: ReadOutcome.SHORT,
    Code.MISSING: ReadOutcome.MISSING,
    Code.RPC_LATE: ReadOutcome.LATE,
}
_REMOVALS: Mapping[int, WriteOutcome] = {
    Code.DONE: WriteOutcome.DROPPED,
    Code.MISSING: WriteOutcome.MISSING,
    Code.RPC_LATE: WriteOutcome.LATE,
}
