"""A lean HTTP/1.1 client for load: keep-alive, one exchange a connection at a time.

    idle ──send──▶ head ──▶ body ──complete──▶ idle
                    └──lost, garbled, given up──▶ closed

A general client costs as much a request as a server under test and may share its machine; this
one does what load needs. It follows no redirect and asks for no compression. Times are seconds
on the monotonic clock.
"""

from __future__ import annotations

import asyncio
import time
from enum import StrEnum
from typing import Protocol, cast

from bana.eval.client.framing import Body, Head, UntilCloseBody, choose_body

MAX_HEAD_BYTES = 64 * 1024
HEAD_END = b"\r\n\r\n"


class Trouble(StrEnum):
    """Why an exchange is over without a complete answer."""

    NO_CONNECTION = "cannot connect"
    LOST = "connection lost"
    GARBLED = "garbled"


class Garbled(ValueError):
    """The content of an answer cannot be read; its text is the whole reason."""


class Exchange:
    """One request and what came back; subclasses read the answer.

    `due_s` is when the schedule wanted it sent, `sent_s` when the client got round to it: a
    connection that must be opened first counts after that. `end_s` is set by a complete answer.
    """

    __slots__ = (
        "connection",
        "due_s",
        "end_s",
        "error",
        "first_byte_s",
        "is_given_up",
        "is_on_reused",
        "request",
        "sent_s",
        "status",
        "trouble",
    )

    def __init__(self, due_s: float) -> None:
        self.due_s = due_s
        self.sent_s: float | None = None
        self.first_byte_s: float | None = None
        self.end_s: float | None = None
        self.status: int | None = None
        self.trouble: Trouble | None = None
        self.error: str | None = None
        self.is_given_up = False
        self.is_on_reused = False
        # Kept until the first byte of the answer, in case a reused socket proves to be dead.
        self.request = b""
        self.connection: Connection | None = None

    def take_head(self, head: Head) -> None:
        """Status line and headers, once; `status` is set."""

    def take(self, payload: bytes, now_s: float) -> None:
        """A piece of the body; Garbled when it cannot be read."""


class Owner(Protocol):
    """Whoever keeps connections."""

    def take_back(self, connection: Connection, exchange: Exchange) -> None:
        """An exchange is over; the connection is idle, or closed."""

    def forget(self, connection: Connection) -> None:
        """An idle connection was closed."""


class Connection(asyncio.Protocol):
    """One socket. Its owner is told once of each exchange's end."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._head = b""
        self._body: Body | None = None
        self._must_close = False
        self.idle_since_s = time.monotonic()
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No isinstance: TLS transports of asyncio and those of uvloop are of other classes.
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def send(self, exchange: Exchange) -> None:
        """Start an exchange on an idle connection: its `request` is written now."""
        assert self._transport is not None
        assert self._exchange is None
        self._exchange = exchange
        self._head, self._body = b"", None
        exchange.connection = self
        self._transport.write(exchange.request)

    def close(self) -> None:
        """Drop the socket at once; an exchange under way ends as lost."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            # Bytes that nobody asked for: the next answer could not be told from them.
            self.close()
            return
        now_s = time.monotonic()
        if exchange.first_byte_s is None:
            exchange.first_byte_s = now_s
            exchange.request = b""
        try:
            is_complete = self._read(data, exchange, now_s)
        except Garbled as error:
            self._end_garbled(exchange, str(error))
        except ValueError as error:
            self._end_garbled(exchange, f"not HTTP as expected: {error}")
        else:
            if is_complete:
                self._end_complete(exchange, now_s)

    def connection_lost(self, exc: Exception | None) -> None:
        closer = "the server" if self.is_open else "this client"
        is_clean = self.is_open and exc is None
        self.is_open = False
        exchange = self._exchange
        if exchange is None:
            self._owner.forget(self)
        elif is_clean and isinstance(self._body, UntilCloseBody):
            self._end_complete(exchange, time.monotonic())
        else:
            exchange.trouble = Trouble.LOST
            exchange.error = exchange.error or f"{Trouble.LOST}: {exc or f'closed by {closer}'}"
            self._end(exchange)

    def _read(self, data: bytes, exchange: Exchange, now_s: float) -> bool:
        body = self._body
        if body is None:
            self._head += data
            body = self._body = self._take_head(exchange)
            if body is None:
                return False
            data, self._head = self._head, b""
        payload = body.feed(data)
        if payload:
            exchange.take(payload, now_s)
        return body.is_complete

    def _take_head(self, exchange: Exchange) -> Body | None:
        """The framing of the body once its head is there; `_head` keeps what follows the head."""
        end = self._head.find(HEAD_END)
        if end < 0:
            if len(self._head) > MAX_HEAD_BYTES:
                raise ValueError(f"a head of more than {MAX_HEAD_BYTES} bytes")
            return None
        head, self._head = Head(self._head[:end]), self._head[end + len(HEAD_END) :]
        status = _read_status(head.raw)
        if 100 <= status < 200:
            return self._take_head(exchange)
        exchange.status = status
        body = choose_body(head)
        wish = (head.field(b"connection") or b"").lower()
        is_old = head.raw.startswith(b"HTTP/1.0") and b"keep-alive" not in wish
        self._must_close = is_old or b"close" in wish or isinstance(body, UntilCloseBody)
        exchange.take_head(head)
        return body

    def _end_garbled(self, exchange: Exchange, reason: str) -> None:
        exchange.trouble = Trouble.GARBLED
        exchange.error = exchange.error or reason
        self.close()
        self._end(exchange)

    def _end_complete(self, exchange: Exchange, now_s: float) -> None:
        exchange.end_s = now_s
        if self._must_close:
            self.close()
        self._end(exchange)

    def _end(self, exchange: Exchange) -> None:
        self._exchange = None
        exchange.connection = None
        self.idle_since_s = time.monotonic()
        self._owner.take_back(self, exchange)


def _read_status(head: bytes) -> int:
    words = head.partition(b"\r\n")[0].split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise ValueError(f"an answer that begins with {head[:40]!r}")
    return int(words[1])
