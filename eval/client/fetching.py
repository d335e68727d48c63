"""Small GETs beside a load, on connections of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import msgspec

from bana.eval.client.http import Exchange, Garbled
from bana.eval.client.pool import ConnectionPool
from bana.eval.client.target import Target, Writer

MAX_BODY_BYTES = 8 * 2**20
MAX_CONNECTIONS = 2


class Reply(msgspec.Struct, frozen=True):
    """A complete answer."""

    status: int
    body: bytes


class _Collected(Exchange):
    """An exchange whose body is kept whole."""

    __slots__ = ("body", "over")

    def __init__(self) -> None:
        super().__init__(time.monotonic())
        self.body = b""
        self.over = asyncio.Event()

    def take(self, payload: bytes, now_s: float) -> None:
        self.body += payload
        if len(self.body) > MAX_BODY_BYTES:
            raise Garbled(f"an answer of more than {MAX_BODY_BYTES} bytes")


class Fetcher:
    """Asks one server for its paths."""

    def __init__(self, target: Target, headers: Mapping[str, str]) -> None:
        self._writer = Writer(target, headers)
        self._pool: ConnectionPool[_Collected] = ConnectionPool(
            target, lambda exchange: exchange.over.set(), MAX_CONNECTIONS
        )

    async def get(self, path: str, timeout_s: float) -> Reply | None:
        """The answer; None when there was no complete one in time."""
        exchange = _Collected()
        self._pool.send(self._writer.get(path), exchange)
        try:
            async with asyncio.timeout(timeout_s):
                await exchange.over.wait()
        except TimeoutError:
            self._pool.give_up(exchange)
            return None
        if exchange.status is None or exchange.error is not None:
            return None
        return Reply(exchange.status, exchange.body)

    async def close(self) -> None:
        """Drop the connections."""
        await self._pool.close()
