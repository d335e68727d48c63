"""Which connections are let in: a bounded number, and none that never asks anything."""

from __future__ import annotations

import asyncio

from aiohttp import web

from sglang_bana.router.errors import ApiError, body_of, render_error
from sglang_bana.router.protocol import make_protocol

RETRY_AFTER_S = 1
FORGET_S = 1.0


class Doorway:
    """Makes the protocol of each accepted connection.

    One that has not sent a whole request head within `patience_s` is closed, since aiohttp waits
    for a first one without end, and so is one that is idle for `idle_s` between two requests. At
    `max_connections` the one that has been silent longest makes room; where every one has asked
    something, the new one gets a 503 and is closed.
    """

    def __init__(self, max_connections: int, patience_s: float, idle_s: float) -> None:
        self._max_connections = max_connections
        self._patience_s = patience_s
        self._idle_s = idle_s
        self._silent: dict[web.RequestHandler, asyncio.TimerHandle] = {}
        self._forgot_s = 0.0

    def accept(self, server: web.Server) -> asyncio.BaseProtocol:
        """The protocol of a new connection of `server`."""
        connected = len(server.connections)
        if len(self._silent) > 2 * connected:
            self._forget_closed()
        if connected >= self._max_connections and not self._make_room():
            return _Refusal(self._max_connections)
        protocol = make_protocol(server, self._idle_s)
        self._silent[protocol] = asyncio.get_running_loop().call_later(
            self._patience_s, self._close_silent, protocol
        )
        return protocol

    def note_request(self, request: web.BaseRequest) -> None:
        """The connection of `request` has asked something."""
        timer = self._silent.pop(request.protocol, None)
        if timer is not None:
            timer.cancel()

    def _make_room(self) -> bool:
        """Close the connection that has been silent longest; False when there is none."""
        while self._silent:
            protocol = next(iter(self._silent))
            is_open = protocol.transport is not None
            self._close_silent(protocol)
            if is_open:
                return True
        return False

    def _forget_closed(self) -> None:
        """Drop connections that came and went without a word; at most once in FORGET_S."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._forgot_s < FORGET_S:
            return
        self._forgot_s = now_s
        # One that was let in just now has no transport yet.
        settled_s = now_s - FORGET_S + self._patience_s
        for protocol, timer in list(self._silent.items()):
            if protocol.transport is None and timer.when() < settled_s:
                self._silent.pop(protocol).cancel()

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
