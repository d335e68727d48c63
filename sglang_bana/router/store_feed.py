"""What the store's daemon says of itself, asked over ZMQ."""

from __future__ import annotations

import asyncio
import logging
import time

import zmq
import zmq.asyncio

from bana.radix_global.admin_messages import AskStatus, Status, StoreReport
from bana.radix_global.messages import MAX_MESSAGE_BYTES, decode_event, encode
from bana.slo.errors import StoreError
from sglang_bana.status import StoreStatus

ASK_S = 0.5
STALE_S = 5.0
_LOG = logging.getLogger(__name__)


class StoreFeed:
    """Asks again and again; a daemon that does not answer costs nobody anything but its news."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._report: StoreReport | None = None
        self._heard_s = 0.0

    def status(self) -> StoreStatus | None:
        """The last answer, None without a store or before the first one."""
        if self._report is None:
            return None
        return StoreStatus(time.monotonic() - self._heard_s, self._report)

    def report(self) -> StoreReport | None:
        """What the daemon said last; None where it is silent, or there is none."""
        is_news = time.monotonic() - self._heard_s <= STALE_S
        return self._report if is_news else None

    async def run(self) -> None:
        """Ask until cancelled; returns at once where there is no store."""
        if not self._endpoint:
            return
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            # What was asked while there was no daemon is not to be answered by a later one.
            socket.setsockopt(zmq.IMMEDIATE, 1)
            socket.setsockopt(zmq.SNDTIMEO, int(ASK_S * 1000))
            socket.connect(self._endpoint)
            while True:
                await self._ask(socket)
                await asyncio.sleep(ASK_S)

    async def _ask(self, socket: zmq.asyncio.Socket) -> None:
        try:
            await socket.send(encode(AskStatus(1)))
        except zmq.Again:
            return
        # Answers to earlier questions may have come late; the newest counts.
        while await socket.poll(int(ASK_S * 1000)):
            try:
                answer = decode_event(await socket.recv())
            except StoreError as error:
                _LOG.warning("the store's status could not be read and is left out: %s", error)
                return
            if isinstance(answer, Status):
                self._report, self._heard_s = answer.report, time.monotonic()
            if not await socket.poll(0):
                return
