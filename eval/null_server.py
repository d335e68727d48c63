"""The cheapest server that clients and routers accept as SGLang: it answers at once, on time.

    python -m bana.eval.null_server --port P --chunks-per-s R

A POST with `"stream": true` gets as many SSE events as tokens were asked, at R a second on
absolute times, then `[DONE]`; any other POST one small answer; a GET what routers probe for. It
exists because an upstream that costs as much as what is under test would be what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from typing import Protocol

import msgspec

MAX_REQUEST_BYTES = 64 * 2**20
HEAD_END = b"\r\n\r\n"
MODEL = "null"


class Sampling(msgspec.Struct, frozen=True):
    """What of `/generate`'s sampling parameters matters here."""

    max_new_tokens: int | None = None


class Ask(msgspec.Struct):
    """What of a request matters here; some routers rename the limit to its newer name."""

    stream: bool = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    sampling_params: Sampling = Sampling()

    @property
    def chunks(self) -> int:
        found = self.sampling_params.max_new_tokens
        return self.max_tokens or self.max_completion_tokens or found or 1


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


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
STREAM_END = encode_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Shape(Protocol):
    """How the answers of one endpoint look; `whole` is a complete one."""

    whole: bytes

    def event(self, count: int, wanted: int) -> bytes:
        """The `count`-th event of `wanted`, counted from 1, as an HTTP chunk."""


class OpenAiShape:
    """Chat completions and completions: all events but the last are the same."""

    def __init__(self, kind: str, part: dict[str, object], answer: dict[str, object]) -> None:
        head = {"id": "null", "created": 0, "model": MODEL}
        self._next = self._encode({**head, "object": f"{kind}.chunk"}, part, None)
        self._last = self._encode({**head, "object": f"{kind}.chunk"}, part, "stop")
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        choice = {"index": 0, **answer, "finish_reason": "stop"}
        self.whole = encode_answer({**head, "object": kind, "choices": [choice], "usage": usage})

    def event(self, count: int, wanted: int) -> bytes:
        return self._last if count >= wanted else self._next

    @staticmethod
    def _encode(head: dict[str, object], part: dict[str, object], finish: str | None) -> bytes:
        choice = {"index": 0, **part, "finish_reason": finish}
        return encode_chunk(b"data: %s\n\n" % msgspec.json.encode({**head, "choices": [choice]}))


class NativeShape:
    """`/generate`: each event tells how many tokens there are so far."""

    whole = encode_answer(
        {"text": " end", "meta_info": {"completion_tokens": 1, "finish_reason": {"type": "stop"}}}
    )

    def event(self, count: int, wanted: int) -> bytes:
        finish = b'{"type":"length"}' if count >= wanted else b"null"
        return encode_chunk(
            b'data: {"text":" more","meta_info":{"completion_tokens":%d,"finish_reason":%s}}\n\n'
            % (count, finish)
        )


CHAT = OpenAiShape(
    "chat.completion",
    {"delta": {"content": " more"}},
    {"message": {"role": "assistant", "content": " end"}},
)
SHAPES: dict[bytes, Shape] = {
    b"/generate": NativeShape(),
    b"/v1/completions": OpenAiShape("text_completion", {"text": " more"}, {"text": " end"}),
}


class NullProtocol(asyncio.Protocol):
    """One client connection; a request is read whole, then answered."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._timer: asyncio.TimerHandle | None = None
        self._shape: Shape = CHAT
        self._start_s = 0.0

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
        method, target, _ = head.split(b" ", 2)
        path = target.partition(b"?")[0]
        if method != b"POST":
            self._transport.write(encode_answer(PROBED.get(path, DEFAULT_PROBED)))
            return
        self._shape = SHAPES.get(path, CHAT)
        ask = _DECODER.decode(body) if body else Ask()
        if ask.stream:
            self._start_s = self._loop.time()
            self._send_event(STREAM_HEAD, 1, ask.chunks)
        else:
            self._transport.write(self._shape.whole)

    def _send_event(self, before: bytes, count: int, wanted: int) -> None:
        if self._transport is None:
            return
        event = self._shape.event(count, wanted)
        if count >= wanted:
            self._transport.write(before + event + STREAM_END)
            return
        self._transport.write(before + event)
        due_s = self._start_s + count * self._interval_s
        self._timer = self._loop.call_at(due_s, self._send_event, b"", count + 1, wanted)


def _read_length(head: bytes) -> int:
    _, found, after = head.lower().partition(b"\r\ncontent-length:")
    return int(after.partition(b"\r\n")[0]) if found else 0


class Plan(msgspec.Struct, frozen=True):
    """What to serve. `is_tied`: end also when standard input does, so with whoever holds it."""

    port: int
    interval_s: float
    is_tied: bool


async def serve(plan: Plan) -> None:
    """Answer on the loopback until SIGTERM or SIGINT; the port is printed once it listens."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    server = await loop.create_server(
        lambda: NullProtocol(plan.interval_s), "127.0.0.1", plan.port, backlog=2048
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    if plan.is_tied:
        loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bana.eval.null_server")
    parser.add_argument("--port", type=int, required=True, help="0 takes a free one")
    parser.add_argument("--chunks-per-s", type=float, default=2.0)
    parser.add_argument("--tied", action="store_true", help="end when standard input does")
    given = parser.parse_args()
    asyncio.run(serve(Plan(given.port, 1.0 / given.chunks_per_s, given.tied)))


if __name__ == "__main__":
    main()
