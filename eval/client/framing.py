"""How an HTTP/1.1 body ends: after a length, with an empty chunk, or with its connection."""

from __future__ import annotations

from typing import Protocol

MAX_CHUNK_BYTES = 16 * 2**20
MAX_LINE_BYTES = 16 * 2**10
LINE_END = b"\r\n"


class Body(Protocol):
    """Takes the framing off a body."""

    is_complete: bool

    def feed(self, data: bytes) -> bytes:
        """The payload in `data` and what was kept of earlier pieces; ValueError if malformed."""


class LengthBody:
    """A body of `left` bytes."""

    def __init__(self, left: int) -> None:
        self._left = left
        self.is_complete = False

    def feed(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("more bytes than Content-Length said")
        self.is_complete = self._left == 0
        return data


class ChunkedBody:
    """A body in HTTP chunks: size line, bytes, CRLF, …, an empty chunk, trailers, CRLF."""

    def __init__(self) -> None:
        self._rest = b""
        self.is_complete = False

    def feed(self, data: bytes) -> bytes:
        buffer = self._rest + data
        payloads: list[bytes] = []
        place = 0
        while (line_end := buffer.find(LINE_END, place)) >= 0:
            size = _read_size(buffer[place:line_end])
            if size == 0:
                self.is_complete = buffer.find(LINE_END * 2, line_end) >= 0
                break
            start = line_end + len(LINE_END)
            if len(buffer) < start + size + len(LINE_END):
                break
            payloads.append(buffer[start : start + size])
            place = start + size + len(LINE_END)
        self._rest = buffer[place:]
        if line_end < 0 and len(self._rest) > MAX_LINE_BYTES:
            raise ValueError(f"a chunk size or trailer of more than {MAX_LINE_BYTES} bytes")
        return payloads[0] if len(payloads) == 1 else b"".join(payloads)


class UntilCloseBody:
    """A body that ends with its connection, the only end of one without length or chunks."""

    is_complete = False

    def feed(self, data: bytes) -> bytes:
        return data


def choose_body(head: Head) -> Body:
    """The framing that the header lines announce; names are matched in any case."""
    coding = head.field(b"transfer-encoding")
    if coding is not None and coding.lower().endswith(b"chunked"):
        return ChunkedBody()
    length = head.field(b"content-length")
    if length is None:
        return UntilCloseBody()
    if not length.isdigit():
        raise ValueError(f"Content-Length {length[:40]!r}")
    return LengthBody(int(length))


class Head:
    """Status line and headers of an answer, as they came."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self._lower = raw.lower()

    def field(self, name: bytes) -> bytes | None:
        """The value of header `name`, given in lower case; None when it is not there."""
        # The status line comes first, so that every header follows a line end.
        mark = LINE_END + name + b":"
        start = self._lower.find(mark)
        if start < 0:
            return None
        return self.raw[start + len(mark) :].partition(LINE_END)[0].strip()


def _read_size(line: bytes) -> int:
    size = int(line.partition(b";")[0], 16)
    if not 0 <= size <= MAX_CHUNK_BYTES:
        raise ValueError(f"a chunk of {size} bytes, allowed: at most {MAX_CHUNK_BYTES}")
    return size
