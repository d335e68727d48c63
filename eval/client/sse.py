"""Cuts a body into server-sent events, however its bytes arrive.

Source: the HTML standard, 9.2 (server-sent events). It would have unknown fields ignored; here
they make an answer garbage, since no server of tokens sends any.
"""

from __future__ import annotations

from bana.eval.client.http import Garbled

MAX_EVENT_BYTES = 16 * 2**20
SHOWN_BYTES = 80
_UNUSED_FIELDS = (b"event", b"id", b"retry")


class EventStream:
    """The data of each event; what belongs to none yet is kept."""

    def __init__(self) -> None:
        self._rest = b""
        self._held = b""

    @property
    def rest(self) -> bytes:
        """What no blank line has ended so far."""
        return self._rest

    def feed(self, payload: bytes) -> list[bytes]:
        """The data of the events that `payload` completes; Garbled when it is no event stream."""
        if self._held or b"\r" in payload:
            payload = self._normalise(payload)
        *blocks, self._rest = (self._rest + payload).split(b"\n\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise Garbled(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return [data for block in blocks if (data := _read_block(block)) is not None]

    def _normalise(self, payload: bytes) -> bytes:
        """Lines end with LF, CR or CRLF; a CR at the end may be the first half of the last."""
        payload = self._held + payload
        self._held = b"\r" if payload.endswith(b"\r") else b""
        if self._held:
            payload = payload[:-1]
        return payload.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _read_block(block: bytes) -> bytes | None:
    """The data of one event, its lines joined; None where it has none."""
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = [line for line in block.split(b"\n") if line]
    found = [data for line in lines if (data := _read_line(line)) is not None]
    return b"\n".join(found) if found else None


def _read_line(line: bytes) -> bytes | None:
    name, _, value = line.partition(b":")
    if name == b"data":
        return value.removeprefix(b" ")
    if name and name not in _UNUSED_FIELDS:
        raise Garbled(f"not an event stream: {show_bytes(line)}")
    return None


def show_bytes(found: bytes) -> str:
    """The beginning of something a server sent, on one line."""
    text = found[:SHOWN_BYTES].decode(errors="replace")
    kept = "".join(c if c.isprintable() else "�" for c in " ".join(text.split()))
    return f"{kept!r}…" if len(found) > SHOWN_BYTES else repr(kept)
