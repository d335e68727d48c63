"""Sends calls to one server and ends every one of them, whatever the server does.

Timeouts are found by a sweep of all that is out: a timer a call would cost more than the call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bana.eval.client.call import Call, Conclusion
from bana.eval.client.plan import ClientPlan, Timeouts
from bana.eval.client.pool import ConnectionPool
from bana.eval.requests import Ending

SWEEP_S = 0.2
# A sweep of thousands in one go would delay a request that is due.
SWEPT_AT_ONCE = 64
REFILL_S = 1.0
DRAIN_POLL_S = 0.02


class Caller:
    """The calls that are out. `on_over` sees each when it is over."""

    def __init__(self, plan: ClientPlan, on_over: Callable[[Call], None]) -> None:
        self._plan = plan
        self._on_over = on_over
        self._out: dict[Call, None] = {}
        most = plan.max_outstanding + plan.spare_connections
        self._pool = ConnectionPool(plan.target, self._end, most, plan.timeouts.connect_s)

    @property
    def outstanding(self) -> int:
        """How many calls are out."""
        return len(self._out)

    async def open(self) -> None:
        """Open connections ahead; OSError when the server cannot be reached at all."""
        await self._pool.open_ahead(max(1, self._plan.spare_connections))

    def start(self, call: Call, request: bytes) -> None:
        """Send now; past `max_outstanding` the call is over at once, without having been sent."""
        if len(self._out) >= self._plan.max_outstanding:
            reason = f"not sent: {self._plan.max_outstanding} others were out (max_outstanding)"
            call.conclude(time.monotonic(), Conclusion(Ending.UNFINISHED, reason))
            self._on_over(call)
            return
        self._out[call] = None
        self._pool.send(request, call)
        cancel_after_s = call.offered.cancel_after_s
        if cancel_after_s is not None:
            reason = f"cancelled {cancel_after_s:g} s after the send, as planned"
            conclusion = Conclusion(Ending.CANCELLED, reason)
            asyncio.get_running_loop().call_later(cancel_after_s, self.give_up, call, conclusion)

    def give_up(self, call: Call, conclusion: Conclusion) -> None:
        """End a call that is out: its connection is closed. One that is over stays as it ended."""
        if call in self._out:
            self._pool.give_up(call)
            self._end(call, conclusion)

    def give_up_all(self, reason: str) -> None:
        """End all that is out."""
        for call in list(self._out):
            self.give_up(call, Conclusion(Ending.UNFINISHED, reason))

    async def watch_timeouts(self) -> None:
        """End what passes a timeout, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            for place, call in enumerate(list(self._out), start=1):
                if place % SWEPT_AT_ONCE == 0:
                    await asyncio.sleep(0)
                reason = find_timeout(call, self._plan.timeouts, time.monotonic())
                if reason is not None:
                    self.give_up(call, Conclusion(Ending.UNFINISHED, reason))

    async def keep_spare(self) -> None:
        """Keep connections open ahead, until cancelled."""
        while True:
            await asyncio.sleep(REFILL_S)
            await self._pool.keep_spare(self._plan.spare_connections)

    async def drain(self, timeout_s: float) -> None:
        """Wait until nothing is out; what is out after `timeout_s` is given up."""
        deadline_s = time.monotonic() + timeout_s
        while self._out and time.monotonic() < deadline_s:
            await asyncio.sleep(DRAIN_POLL_S)
        self.give_up_all(f"not over {timeout_s:g} s after the last send")

    async def close(self) -> None:
        """End all that is out and drop every connection."""
        self.give_up_all("the run ended")
        await self._pool.close()

    def _end(self, call: Call, conclusion: Conclusion | None = None) -> None:
        del self._out[call]
        call.conclude(time.monotonic(), conclusion)
        self._on_over(call)


def find_timeout(call: Call, timeouts: Timeouts, now_s: float) -> str | None:
    """Which timeout a call that is out has passed, None where it has not."""
    assert call.sent_s is not None
    if now_s - call.sent_s > timeouts.total_s:
        return f"not over within {timeouts.total_s:g} s of the send"
    if call.last_s is None:
        is_late = now_s - call.sent_s > timeouts.first_token_s
        return f"no token within {timeouts.first_token_s:g} s of the send" if is_late else None
    is_stalled = now_s - call.last_s > timeouts.stall_s
    return (
        f"no token for {timeouts.stall_s:g} s in the middle of the answer" if is_stalled else None
    )
