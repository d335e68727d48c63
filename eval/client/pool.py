"""Keep-alive connections to one target, opened ahead or as a load needs them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from bana.eval.client.http import Connection, Exchange, Trouble
from bana.eval.client.target import Target

# Engines drop idle sockets after 5 s; one that is about to be dropped must not carry a POST.
MAX_IDLE_S = 3.0
CONNECT_TIMEOUT_S = 10.0
# A socket that was dead when it was reused says so within a round trip, not later.
RETRY_WITHIN_S = 1.0
CLOSING_S = 0.05

E = TypeVar("E", bound=Exchange)


class ConnectionPool(Generic[E]):
    """Sends exchanges to `target`; `on_end` sees each when it is over, failed ones included.

    One that is given up ends when `give_up` returns and is not seen.
    """

    def __init__(
        self,
        target: Target,
        on_end: Callable[[E], None],
        max_connections: int,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self.target = target
        self._on_end = on_end
        self._max_connections = max_connections
        self._connect_timeout_s = connect_timeout_s
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._addresses: list[str] = []
        self._tls = ssl.create_default_context() if target.is_secure else None

    @property
    def idle(self) -> int:
        """How many connections could be reused."""
        return len(self._idle)

    def send(self, request: bytes, exchange: Exchange) -> None:
        """Send now on an idle connection, else on a new one; past the cap it fails at once."""
        exchange.sent_s = time.monotonic()
        exchange.request = request
        connection = self._take_idle()
        exchange.is_on_reused = connection is not None
        if connection is not None:
            connection.send(exchange)
            return
        if len(self._open) + len(self._opening) >= self._max_connections:
            reason = f"more than {self._max_connections} connections at once"
            self._fail(exchange, reason)
            return
        self._spawn(exchange)

    def give_up(self, exchange: Exchange) -> None:
        """The answer is no longer wanted: its connection is closed, `on_end` is not called."""
        exchange.is_given_up = True
        if exchange.connection is not None:
            exchange.connection.close()

    async def open_ahead(self, count: int) -> None:
        """Open so many idle connections at once; OSError when the server cannot be reached."""
        await self._open_idle()
        others = (self._open_idle() for _ in range(count - 1))
        await asyncio.gather(*others, return_exceptions=True)

    async def keep_spare(self, count: int) -> None:
        """Drop connections that were idle for too long, and open others until `count` are idle.

        One after the other, since many at once would delay a request that is due. What cannot be
        opened now is left to the requests that need it.
        """
        self._drop_stale()
        with contextlib.suppress(OSError):
            for _ in range(count - len(self._idle)):
                if len(self._open) < self._max_connections:
                    await self._open_idle()

    async def close(self) -> None:
        """Drop every connection and wait until they are gone, within bounds."""
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for connection in list(self._open):
            connection.close()
        self._open.clear()
        self._idle.clear()
        await asyncio.sleep(CLOSING_S)

    def take_back(self, connection: Connection, exchange: Exchange) -> None:
        """A connection's exchange is over."""
        if connection.is_open:
            self._idle.append(connection)
        else:
            self._open.discard(connection)
        if exchange.is_given_up:
            return
        if _was_dead(exchange):
            exchange.trouble, exchange.error, exchange.is_on_reused = None, None, False
            self._spawn(exchange)
            return
        self._on_end(cast(E, exchange))

    def forget(self, connection: Connection) -> None:
        """An idle connection was closed."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _take_idle(self) -> Connection | None:
        oldest_s = time.monotonic() - MAX_IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.idle_since_s > oldest_s:
                return connection
            self._open.discard(connection)
            connection.close()
        return None

    def _drop_stale(self) -> None:
        oldest_s = time.monotonic() - MAX_IDLE_S
        for connection in [c for c in self._idle if c.idle_since_s <= oldest_s]:
            self._idle.remove(connection)
            self._open.discard(connection)
            connection.close()

    def _spawn(self, exchange: Exchange) -> None:
        task = asyncio.get_running_loop().create_task(self._open_and_send(exchange))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open_and_send(self, exchange: Exchange) -> None:
        try:
            connection = await self._open_connection()
        except TimeoutError:
            self._fail(exchange, f"timed out after {self._connect_timeout_s:g} s")
        except OSError as error:
            self._fail(exchange, str(error))
        else:
            if exchange.is_given_up:
                self._idle.append(connection)
            else:
                connection.send(exchange)

    def _fail(self, exchange: Exchange, reason: str) -> None:
        exchange.trouble = Trouble.NO_CONNECTION
        exchange.error = f"{Trouble.NO_CONNECTION}: {reason}"
        if not exchange.is_given_up:
            self._on_end(cast(E, exchange))

    async def _open_idle(self) -> None:
        self._idle.append(await self._open_connection())

    async def _open_connection(self) -> Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connect_timeout_s):
            if not self._addresses:
                self._addresses = await _resolve(self.target)
            failure = OSError("no address")
            for address in self._addresses:
                try:
                    _, connection = await loop.create_connection(
                        lambda: Connection(self),
                        address,
                        self.target.port,
                        ssl=self._tls,
                        server_hostname=self.target.host if self._tls else None,
                    )
                except OSError as error:
                    failure = error
                    continue
                # The one that answered is asked first from now on.
                self._addresses = sorted(self._addresses, key=address.__ne__)
                self._open.add(connection)
                return connection
        raise failure


def _was_dead(exchange: Exchange) -> bool:
    """Whether a reused socket was closed by the server before it could see the request.

    It is then resent on a fresh one, where this is False: at most once.
    """
    assert exchange.sent_s is not None
    is_early = time.monotonic() - exchange.sent_s < RETRY_WITHIN_S
    is_unseen = exchange.trouble is Trouble.LOST and exchange.first_byte_s is None
    return exchange.is_on_reused and is_unseen and is_early


async def _resolve(target: Target) -> list[str]:
    """The addresses of the host, looked up once: a look-up a connection would cost a thread."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
