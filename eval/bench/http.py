"""A lean HTTP/1.1 client for load: keep-alive, one exchange a connection at a time, SSE counted.

A general client costs as much a request as the router under test and shares its machine; this
one only does what a load point needs. Times are seconds on the running loop's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 16 * 2**20
HEAD_END = b"\r\n\r\n"


class Target(msgspec.Struct, frozen=True):
    """Where requests go, with the bearer key that it wants."""

    url: str
    key: str = ""

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 80


def encode_post(target: Target, path: str, body: object) -> bytes:
    """The bytes of one JSON POST."""
    payload = msgspec.json.encode(body)
    auth = f"Authorization: Bearer {target.key}\r\n" if target.key else ""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {target.host}:{target.port}\r\n{auth}"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    return head.encode() + payload


class Exchange:
    """One request and what came back.

    `due_s` is when the schedule wanted it sent, `sent_s` when the client got round to it: a
    connection that must be opened first counts after that.
    """

    __slots__ = (
        "due_s",
        "end_s",
        "error",
        "events",
        "first_byte_s",
        "first_event_s",
        "is_finished",
        "last_event",
        "rest",
        "sent_s",
        "status",
    )

    def __init__(self, due_s: float) -> None:
        self.due_s = due_s
        self.sent_s: float | None = None
        self.first_byte_s: float | None = None
        self.first_event_s: float | None = None
        self.end_s: float | None = None
        self.status: int | None = None
        self.error: str | None = None
        self.events = 0
        self.is_finished = False
        self.last_event = b""
        self.rest = b""

    @property
    def is_ok(self) -> bool:
        """It was answered completely with 200 and without an error event."""
        return self.status == 200 and self.error is None and self.end_s is not None

    def take(self, payload: bytes) -> None:
        """Count the events in a piece of the body; `rest` is what belongs to none yet."""
        *events, self.rest = (self.rest + payload).split(b"\n\n")
        for event in events:
            if event.startswith(b"data: [DONE]"):
                self.is_finished = True
            elif event.startswith(b"data:"):
                if self.events == 0:
                    self.first_event_s = asyncio.get_running_loop().time()
                self.events += 1
                self.last_event = event
                if event.startswith(b'data: {"error"'):
                    self.error = "error event in the stream"
        if len(self.rest) > MAX_BODY_BYTES:
            raise ValueError(f"an answer of more than {MAX_BODY_BYTES} bytes without an event")


class Body(Protocol):
    """Reads a body; `feed` answers True when it is complete."""

    def feed(self, data: bytes, exchange: Exchange) -> bool: ...


class LengthBody:
    """A body of `left` bytes."""

    def __init__(self, left: int) -> None:
        self._left = left

    def feed(self, data: bytes, exchange: Exchange) -> bool:
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("more bytes than Content-Length said")
        exchange.take(data)
        return self._left == 0


class ChunkedBody:
    """A body in HTTP chunks: size line, bytes, CRLF, …, an empty chunk."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes, exchange: Exchange) -> bool:
        buffer = self._buffer + data
        while (line_end := buffer.find(b"\r\n")) >= 0:
            size = int(buffer[:line_end].split(b";")[0], 16)
            end = line_end + 2 + size
            if len(buffer) < end + 2:
                break
            if size == 0:
                return True
            exchange.take(buffer[line_end + 2 : end])
            buffer = buffer[end + 2 :]
        self._buffer = buffer
        return False


OnEnd = Callable[["Connection", Exchange], None]


class Connection(asyncio.Protocol):
    """One socket. `on_end` is called once for each exchange, with its error if it had one."""

    def __init__(self, on_end: OnEnd) -> None:
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._head = b""
        self._body: Body | None = None
        self._must_close = False
        self.idle_since_s = 0.0
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.is_open = True

    def send(self, request: bytes, exchange: Exchange) -> None:
        """Start an exchange on an idle connection."""
        assert self._transport is not None
        assert self._exchange is None
        self._exchange = exchange
        self._head, self._body = b"", None
        self._transport.write(request)

    def close(self) -> None:
        """Drop the socket; an exchange under way ends with an error."""
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self.close()
            return
        if exchange.first_byte_s is None:
            exchange.first_byte_s = self._loop.time()
        try:
            is_complete = self._read(data, exchange)
        except ValueError as error:
            self._end(f"not HTTP as expected: {error}")
            self.close()
            return
        if is_complete:
            exchange.end_s = self._loop.time()
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        closer = "the server" if self.is_open else "this client"
        self.is_open = False
        if self._exchange is not None:
            self._end(f"connection lost: {exc or f'closed by {closer}'}")

    def _read(self, data: bytes, exchange: Exchange) -> bool:
        if self._body is None:
            self._head += data
            end = self._head.find(HEAD_END)
            if end < 0:
                if len(self._head) > MAX_HEAD_BYTES:
                    raise ValueError(f"a head of more than {MAX_HEAD_BYTES} bytes")
                return False
            data = self._head[end + len(HEAD_END) :]
            self._body = self._read_head(self._head[:end], exchange)
        return self._body.feed(data, exchange)

    def _read_head(self, head: bytes, exchange: Exchange) -> Body:
        status_line, _, rest = head.partition(b"\r\n")
        exchange.status = int(status_line.split(b" ", 2)[1])
        fields = rest.lower() + b"\r\n"
        self._must_close = b"connection: close" in fields
        if b"transfer-encoding: chunked" in fields:
            return ChunkedBody()
        _, found, after = fields.partition(b"content-length:")
        if not found:
            raise ValueError("an answer with neither length nor chunks")
        return LengthBody(int(after.partition(b"\r\n")[0]))

    def _end(self, error: str | None) -> None:
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        exchange.error = exchange.error or error
        self.idle_since_s = self._loop.time()
        if self._must_close:
            self.close()
        self._on_end(self, exchange)


async def open_connection(target: Target, on_end: OnEnd) -> Connection:
    """A connected socket; OSError when refused."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(
        lambda: Connection(on_end), target.host, target.port
    )
    return connection
