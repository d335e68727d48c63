"""A stand-in for a store's daemon: it says that it lives."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import zmq
import zmq.asyncio

from bana.radix_global.admin_messages import Status, StoreReport
from bana.radix_global.messages import encode


@contextlib.asynccontextmanager
async def run_store(endpoint: str) -> AsyncIterator[None]:
    """What the front door asks of a store's daemon: whether it lives."""
    report = StoreReport(
        epoch=1,
        pid=os.getpid(),
        uptime_s=1.0,
        is_recovering=False,
        free_slots=1,
        slots=1,
        slot_bytes=1,
        places=(),
        owners=(),
        longest_turn_s=0.0,
        pinned_pages=0,
        counts={},
    )

    async def answer(socket: zmq.asyncio.Socket) -> None:
        while True:
            route, _ = await socket.recv_multipart()
            await socket.send_multipart([route, encode(Status(1, report))])

    with zmq.asyncio.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(endpoint)
        answering = asyncio.create_task(answer(socket))
        try:
            yield
        finally:
            answering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await answering
