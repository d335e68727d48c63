"""Keep-alive connections to one target, opened as a load needs them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bana.eval.bench.http import Connection, Exchange, Target, open_connection

# Engines drop idle sockets after 5 s; one that is about to be dropped must not carry a POST.
MAX_IDLE_S = 3.0
CONNECT_TIMEOUT_S = 10.0


class ConnectionPool:
    """Sends exchanges to `target`; `on_end` sees each when it is over, failed ones included."""

    def __init__(
        self, target: Target, on_end: Callable[[Exchange], None], max_connections: int
    ) -> None:
        self.target = target
        self._on_end = on_end
        self._max_connections = max_connections
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def send(self, request: bytes, exchange: Exchange) -> None:
        """Send now on an idle connection, else on a new one; past the cap it fails at once."""
        exchange.sent_s = self._loop.time()
        connection = self._take_idle()
        if connection is not None:
            connection.send(request, exchange)
            return
        if len(self._open) + len(self._opening) >= self._max_connections:
            exchange.error = f"more than {self._max_connections} connections at once"
            self._on_end(exchange)
            return
        task = self._loop.create_task(self._open_and_send(request, exchange))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def close(self) -> None:
        """Drop every connection and wait until they are gone, within bounds."""
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for connection in list(self._open):
            connection.close()
        self._open.clear()
        self._idle.clear()
        await asyncio.sleep(0.05)

    def _take_idle(self) -> Connection | None:
        oldest_s = self._loop.time() - MAX_IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.idle_since_s > oldest_s:
                return connection
            connection.close()
            self._open.discard(connection)
        return None

    async def _open_and_send(self, request: bytes, exchange: Exchange) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connection = await open_connection(self.target, self._release)
        except (OSError, TimeoutError) as error:
            exchange.error = f"cannot connect: {error or 'timed out'}"
            self._on_end(exchange)
            return
        self._open.add(connection)
        connection.send(request, exchange)

    def _release(self, connection: Connection, exchange: Exchange) -> None:
        if connection.is_open:
            self._idle.append(connection)
        else:
            self._open.discard(connection)
        self._on_end(exchange)
