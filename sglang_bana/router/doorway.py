"""Which connections are let in: a bounded number, and none that never asks anything."""

from __future__ import annotations

import asyncio

from aiohttp import web

from sglang_bana.router.errors import ApiError, body_of, render_error

RETRY_AFTER_S = 1


class Doorway:
    """Makes the protocol of each accepted connection.

    One that has not sent a whole request head within `patience_s` is closed, since aiohttp waits
    for a first one without end. At `max_connections` the one that has been silent longest makes
    room; where every one has asked something, the new one gets a 503 and is closed.
    """

    def __init__(self, max_connections: int, patience_s: float) -> None:
        self._max_connections = max_connections
        self._patience_s = patience_s
        self._silent: dict[web.RequestHandler, asyncio.TimerHandle] = {}

    def accept(self, server: web.Server) -> asyncio.BaseProtocol:
        """The protocol of a new connection of `server`."""
        if len(server.connections) >= self._max_connections:
            if not self._silent:
                return _Refusal(self._max_connections)
            self._close_silent(next(iter(self._silent)))
        protocol = server()
        self._silent[protocol] = asyncio.get_running_loop().call_later(
            self._patience_s, self._close_silent, protocol
        )
        return protocol

    def note_request(self, request: web.BaseRequest) -> None:
        """The connection of `request` has asked something."""
        timer = self._silent.pop(request.protocol, None)
        if timer is not None:
            timer.cancel()

    def _close_silent(self, protocol: web.RequestHandler) -> None:
        self._silent.pop(protocol).cancel()
        protocol.force_close()


class _Refusal(asyncio.Protocol):
    """Tells one client that there are too many of them."""

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        error = ApiError(
            503,
            "too_many_connections",
            f"{self._max_connections} connections are open, which is limits.max_connections; "
            "close idle ones and try again",
        )
        body = render_error(body_of(error), "")
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
            f"Retry-After: {RETRY_AFTER_S}\r\nretry-after-ms: {RETRY_AFTER_S * 1000}\r\n"
            f"x-bana-error: {error.code}\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        transport.write(head.encode() + body)
        transport.close()
