"""Which connections are let in: a bounded number, and none that never asks anything."""

from __future__ import annotations

import asyncio

from aiohttp import web

from sglang_bana.router.errors import ApiError, body_of, render_error
from sglang_bana.router.protocol import ErrorObjectProtocol

RETRY_AFTER_S = 1
# A connection closed before its request is read is reset, and its client may never see why.
LINGER_S = 1.0
MAX_LINGERING = 128


class Doorway:
    """Makes the protocol of each accepted connection.

    One that has not sent a whole request head within `patience_s` is closed, since aiohttp waits
    for a first one without end, and so is one that is idle for `idle_s` between two requests. At
    `max_connections` the one that has been silent longest makes room; where there is none, the
    new one gets a 503 and is closed.

    asyncio accepts a burst of connections before it hands any of them its transport. They count
    from their acceptance, and none of them makes room for another.
    """

    def __init__(self, max_connections: int, patience_s: float, idle_s: float) -> None:
        self._max_connections = max_connections
        self._patience_s = patience_s
        self._idle_s = idle_s
        self._guests: set[asyncio.BaseProtocol] = set()
        self._lingering: set[asyncio.BaseProtocol] = set()
        # Those that have asked nothing yet, the oldest first.
        self._silent: dict[web.RequestHandler, asyncio.TimerHandle] = {}

    def accept(self, server: web.Server) -> asyncio.BaseProtocol:
        """The protocol of a new connection of `server`."""
        if len(self._guests) >= self._max_connections and not self._make_room():
            return _Refusal(self._max_connections, self._lingering)
        protocol = ErrorObjectProtocol(server, self._idle_s, self._forget)
        self._guests.add(protocol)
        self._silent[protocol] = asyncio.get_running_loop().call_later(
            self._patience_s, self._close_silent, protocol
        )
        return protocol

    def note_request(self, request: web.BaseRequest) -> None:
        """The connection of `request` has asked something."""
        self._hear(request.protocol)

    def _make_room(self) -> bool:
        """Close the connection that has been silent longest; False when there is none."""
        oldest = next(iter(self._silent), None)
        # Without a transport it was let in just now, as were all after it.
        if oldest is None or oldest.transport is None:
            return False
        self._close_silent(oldest)
        return True

    def _close_silent(self, protocol: web.RequestHandler) -> None:
        self._forget(protocol)
        protocol.force_close()

    def _forget(self, protocol: web.RequestHandler) -> None:
        """It was closed, or is about to be."""
        self._guests.discard(protocol)
        self._hear(protocol)

    def _hear(self, protocol: web.RequestHandler) -> None:
        timer = self._silent.pop(protocol, None)
        if timer is not None:
            timer.cancel()


class _Refusal(asyncio.Protocol):
    """Tells one client that there are too many of them.

    `lingering` are those that were told and are listened to for a moment, bounded.
    """

    def __init__(self, max_connections: int, lingering: set[asyncio.BaseProtocol]) -> None:
        self._max_connections = max_connections
        self._lingering = lingering

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(_render_refusal(self._max_connections))
        if len(self._lingering) >= MAX_LINGERING:
            transport.close()
            return
        self._lingering.add(self)
        transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_S, transport.abort)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._lingering.discard(self)


def _render_refusal(max_connections: int) -> bytes:
    error = ApiError(
        503,
        "too_many_connections",
        f"{max_connections} connections are open, which is limits.max_connections or what the "
        "open files allow; close idle ones and try again",
    )
    body = render_error(body_of(error), "")
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Retry-After: {RETRY_AFTER_S}\r\nretry-after-ms: {RETRY_AFTER_S * 1000}\r\n"
        f"x-bana-error: {error.code}\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
