"""The cheapest server that a router accepts as SGLang: it answers at once and streams on time.

    python -m bana.eval.bench.null_server --port P --chunks-per-s R

A POST with `"stream": true` gets `max_tokens` SSE events at R a second, on absolute times, then
`[DONE]`; any other POST one small completion; a GET what routers probe for. It exists because
an upstream that costs as much as the router under test would be what a benchmark measures.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import tempfile

import msgspec

MAX_REQUEST_BYTES = 2**20
HEAD_END = b"\r\n\r\n"
MODEL = "null"


class Ask(msgspec.Struct):
    """What of a request matters here; some routers rename the limit to its newer name."""

    stream: bool = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None

    @property
    def chunks(self) -> int:
        return self.max_tokens or self.max_completion_tokens or 1


_DECODER = msgspec.json.Decoder(Ask)

PROBED = {
    b"/v1/models": {
        "object": "list",
        "data": [{"id": MODEL, "object": "model", "owned_by": "bana", "root": MODEL}],
    },
    b"/v1/loads": {
        "loads": [
            {
                "dp_rank": 0,
                "num_running_reqs": 0,
                "num_waiting_reqs": 0,
                "num_waiting_uncached_tokens": 0,
                "num_used_tokens": 0,
                "max_total_num_tokens": 1_000_000,
            }
        ]
    },
}
DEFAULT_PROBED = {
    # A folder that exists keeps routers from looking for a tokenizer on a network.
    "model_path": tempfile.gettempdir(),
    "served_model_name": MODEL,
    "is_generation": True,
    "tp_size": 1,
    "dp_size": 1,
}


def encode_answer(body: object) -> bytes:
    """A complete JSON answer with status 200."""
    payload = msgspec.json.encode(body)
    head = (
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    )
    return head.encode() + payload


def encode_chunk(payload: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def encode_event(text: str, finish: str | None) -> bytes:
    """One SSE event of a chat completion stream, as an HTTP chunk."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    event = {
        "id": "null",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": MODEL,
        "choices": [choice],
    }
    return encode_chunk(b"data: %s\n\n" % msgspec.json.encode(event))


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
STREAM_END = encode_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
NEXT_EVENT = encode_event(" more", None)
LAST_EVENT = encode_event(" end", "stop")
SHORT_ANSWER = encode_answer(
    {
        "id": "null",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": " end"},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
)


class NullProtocol(asyncio.Protocol):
    """One client connection; a request is read whole, then answered."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(HEAD_END)
        if end < 0 or self._transport is None:
            return
        head = self._buffer[:end]
        length = _read_length(head)
        if length > MAX_REQUEST_BYTES:
            self._transport.close()
            return
        start = end + len(HEAD_END)
        if len(self._buffer) < start + length:
            return
        body = self._buffer[start : start + length]
        self._buffer = self._buffer[start + length :]
        self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        assert self._transport is not None
        method, path, _ = head.split(b" ", 2)
        if method != b"POST":
            known = PROBED.get(path.partition(b"?")[0], DEFAULT_PROBED)
            self._transport.write(encode_answer(known))
            return
        ask = _DECODER.decode(body) if body else Ask()
        if ask.stream:
            self._transport.write(STREAM_HEAD)
            self._send_event(self._loop.time(), 0, ask.chunks)
        else:
            self._transport.write(SHORT_ANSWER)

    def _send_event(self, start_s: float, sent: int, wanted: int) -> None:
        if self._transport is None:
            return
        if sent + 1 >= wanted:
            self._transport.write(LAST_EVENT + STREAM_END)
            return
        self._transport.write(NEXT_EVENT)
        due_s = start_s + (sent + 1) * self._interval_s
        self._timer = self._loop.call_at(due_s, self._send_event, start_s, sent + 1, wanted)


def _read_length(head: bytes) -> int:
    _, found, after = head.lower().partition(b"\r\ncontent-length:")
    return int(after.partition(b"\r\n")[0]) if found else 0


async def serve(port: int, interval_s: float) -> None:
    """Answer on the loopback `port` until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    server = await loop.create_server(
        lambda: NullProtocol(interval_s), "127.0.0.1", port, backlog=2048
    )
    await ended.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bana.eval.bench.null_server")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--chunks-per-s", type=float, default=2.0)
    given = parser.parse_args()
    asyncio.run(serve(given.port, 1.0 / given.chunks_per_s))


if __name__ == "__main__":
    main()
