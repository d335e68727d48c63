"""Telling an instance at once that nobody waits for a request any more.

SGLang notices a closed connection after 2-4 s; `/abort_request` stops it in milliseconds. A
request so young that the engine may not know its id yet is aborted twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import aiohttp
import msgspec

from sglang_bana.router.instances import Instance
from sglang_bana.router.metrics import RouterMetrics
from sglang_bana.router.upstream import Message, Upstream

MAX_PENDING = 10_000
WORKERS = 4
TIMEOUT_S = 5.0
YOUNG_S = 0.5
_MAX_ANSWER_BYTES = 64 * 1024
_HEADERS = {"Content-Type": "application/json"}


class AbortQueue:
    """A bounded queue of aborts for each instance, so that a frozen one delays no other's.

    What does not fit is counted and left to the closed socket.
    """

    def __init__(
        self, instances: Iterable[Instance], upstream: Upstream, metrics: RouterMetrics
    ) -> None:
        self._upstream = upstream
        self._metrics = metrics
        self._instances = tuple(instances)
        self._pending: dict[str, asyncio.Queue[str]] = {
            instance.name: asyncio.Queue(MAX_PENDING) for instance in self._instances
        }

    def send(self, instance: Instance, rids: Sequence[str], age_s: float) -> None:
        """Abort `rids` on `instance`; `age_s` is how long ago they were sent there."""
        self._put(instance, rids)
        if age_s < YOUNG_S and rids:
            asyncio.get_running_loop().call_later(YOUNG_S, self._put, instance, rids)

    async def run(self) -> None:
        """Send what is queued, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for instance in self._instances:
                for _ in range(WORKERS):
                    group.create_task(self._work(instance))

    def _put(self, instance: Instance, rids: Sequence[str]) -> None:
        pending = self._pending[instance.name]
        for rid in rids:
            try:
                pending.put_nowait(rid)
            except asyncio.QueueFull:
                self._metrics.aborts.labels("dropped").inc()

    async def _work(self, instance: Instance) -> None:
        while True:
            rid = await self._pending[instance.name].get()
            outcome = await self._abort(instance, rid)
            self._metrics.aborts.labels(outcome).inc()

    async def _abort(self, instance: Instance, rid: str) -> str:
        message = Message("POST", "/abort_request", _HEADERS, msgspec.json.encode({"rid": rid}))
        try:
            status, _, _ = await self._upstream.ask(instance, message, TIMEOUT_S, _MAX_ANSWER_BYTES)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return "unreachable"
        return "sent" if status == 200 else "refused"
