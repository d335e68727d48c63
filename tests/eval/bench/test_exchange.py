"""Answers as servers and relays really cut them, against an exchange that counts events."""

from __future__ import annotations

import asyncio

import pytest

from bana.eval.bench.exchange import CountedExchange
from bana.eval.client.pool import ConnectionPool
from bana.eval.client.target import Target, encode_post

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def chunk(payload: bytes) -> bytes:
    return b"%X\r\n%s\r\n" % (len(payload), payload)


SSE = (
    CHUNKED
    + chunk(b"data: {1}\n\nda")
    + chunk(b"ta: {2}\n\n")
    + chunk(b": a comment\n\ndata: {3}\n\ndata: [DONE]\n\n")
    + b"0\r\n\r\n"
)


async def exchange_with(answer: bytes, piece: int) -> CountedExchange:
    """One exchange with a server that writes `answer` in pieces and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for start in range(0, len(answer), piece):
            writer.write(answer[start : start + piece])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    target = Target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    over: asyncio.Queue[CountedExchange] = asyncio.Queue()
    pool = ConnectionPool(target, over.put_nowait, 1)
    try:
        pool.send(encode_post(target, "/", {}), CountedExchange(0.0))
        return await asyncio.wait_for(over.get(), 20)
    finally:
        await pool.close()
        server.close()


@pytest.mark.parametrize("piece", [1, 7, 1_000_000])
def test_events_are_counted_however_they_are_cut(piece: int) -> None:
    exchange = asyncio.run(exchange_with(SSE, piece))

    assert exchange.is_ok
    assert exchange.is_finished
    assert (exchange.events, exchange.last_event) == (3, b"data: {3}")


@pytest.mark.parametrize("piece", [1, 1_000_000])
def test_a_body_of_known_length(piece: int) -> None:
    answer = HEAD + b"content-length: 5\r\n\r\nhello"

    exchange = asyncio.run(exchange_with(answer, piece))

    assert exchange.is_ok
    assert (exchange.status, exchange.rest, exchange.is_finished) == (200, b"hello", False)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (CHUNKED + chunk(b"data: {1}\n\n"), "connection lost: closed by the server"),
        (HEAD + b"Content-Length: 9\r\n\r\nhello", "connection lost"),
        (HEAD + b"Content-Length: many\r\n\r\n", "Content-Length"),
        (CHUNKED + b"zz\r\n", "not HTTP"),
        (CHUNKED + chunk(b'data: {"error": {}}\n\n') + b"0\r\n\r\n", "error event"),
        (b"", "connection lost"),
    ],
)
def test_what_is_cut_off_or_malformed_is_a_failure(answer: bytes, reason: str) -> None:
    exchange = asyncio.run(exchange_with(answer, 1_000_000))

    assert not exchange.is_ok
    assert reason in (exchange.error or "")


async def close_before_the_answer() -> CountedExchange:
    """An exchange whose client closes while the server still thinks."""
    asked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    target = Target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    over: asyncio.Queue[CountedExchange] = asyncio.Queue()
    pool = ConnectionPool(target, over.put_nowait, 1)
    pool.send(encode_post(target, "/", {}), CountedExchange(0.0))
    await asyncio.wait_for(asked.wait(), 20)
    await pool.close()
    server.close()
    return over.get_nowait()


def test_a_server_is_not_blamed_for_what_the_client_closed() -> None:
    exchange = asyncio.run(close_before_the_answer())

    assert exchange.error == "connection lost: closed by this client"


def test_another_status_is_no_success() -> None:
    answer = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\n{}"

    exchange = asyncio.run(exchange_with(answer, 1_000_000))

    assert (exchange.is_ok, exchange.status, exchange.error) == (False, 429, None)


def test_a_body_may_end_with_its_connection() -> None:
    exchange = asyncio.run(exchange_with(HEAD + b"\r\ndata: {1}\n\nhello", 1_000_000))

    assert exchange.is_ok
    assert (exchange.events, exchange.rest) == (1, b"hello")
