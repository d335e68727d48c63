from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from bana.eval.bench.exchange import CountedExchange
from bana.eval.client.http import Trouble
from bana.eval.client.pool import ConnectionPool
from bana.eval.client.target import Target, encode_post

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
PATIENCE_S = 20.0

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Bench:
    """A pool on a server in the same event loop, and what came back."""

    def __init__(self, target: Target, most: int = 4) -> None:
        self.over: asyncio.Queue[CountedExchange] = asyncio.Queue()
        self.pool = ConnectionPool(target, self.over.put_nowait, most)
        self.target = target

    def send(self) -> CountedExchange:
        exchange = CountedExchange(0.0)
        self.pool.send(encode_post(self.target, "/", {}), exchange)
        return exchange

    async def ended(self) -> CountedExchange:
        return await asyncio.wait_for(self.over.get(), PATIENCE_S)


def run_with(
    serve: Serve, check: Callable[[Bench], Awaitable[None]], host: str = "127.0.0.1"
) -> None:
    async def run() -> None:
        server = await asyncio.start_server(serve, host, 0)
        port = server.sockets[0].getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        bench = Bench(Target(f"http://{shown}:{port}"))
        try:
            await check(bench)
        finally:
            await bench.pool.close()
            server.close()

    asyncio.run(run())


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(2)
    return head


async def serve_well(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            await read_request(reader)
            writer.write(OK)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def test_a_connection_is_used_again() -> None:
    opened = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        await serve_well(reader, writer)

    async def check(bench: Bench) -> None:
        for _ in range(5):
            bench.send()
            assert (await bench.ended()).is_ok

    run_with(serve, check)
    assert opened == 1


def test_a_reused_socket_that_was_dead_is_replaced_once_and_times_are_kept() -> None:
    requests = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await read_request(reader)
        requests += 1
        writer.write(OK)
        # The next request on this connection finds it closed while it is written.
        await reader.read(1)
        writer.transport.abort()

    async def check(bench: Bench) -> None:
        bench.send()
        await bench.ended()
        sent = bench.send()
        sent_s = sent.sent_s
        ended = await bench.ended()
        assert ended is sent
        assert ended.is_ok
        assert (ended.sent_s, ended.trouble) == (sent_s, None)

    run_with(serve, check)
    assert requests == 2


def test_a_server_that_closes_fresh_sockets_is_not_asked_again() -> None:
    requests = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await read_request(reader)
        requests += 1
        writer.close()

    async def check(bench: Bench) -> None:
        bench.send()
        ended = await bench.ended()
        assert ended.trouble is Trouble.LOST
        assert "closed by the server" in (ended.error or "")

    run_with(serve, check)
    assert requests == 1


def test_what_is_given_up_is_not_heard_of_again_and_its_socket_is_closed() -> None:
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n")
        with contextlib.suppress(ConnectionError):
            while await reader.read(1):
                pass
        closed.set()
        writer.close()

    async def check(bench: Bench) -> None:
        exchange = bench.send()
        while exchange.first_byte_s is None:
            await asyncio.sleep(0.01)
        bench.pool.give_up(exchange)
        await asyncio.wait_for(closed.wait(), PATIENCE_S)
        assert bench.over.empty()
        assert bench.pool.idle == 0

    run_with(serve, check)


def test_what_is_given_up_before_it_has_a_connection_is_never_sent() -> None:
    asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await serve_well(reader, writer)
        asked += 1

    async def check(bench: Bench) -> None:
        bench.pool.give_up(bench.send())
        bench.send()
        assert (await bench.ended()).is_ok
        assert bench.over.empty()

    run_with(serve, check)


def test_spare_connections_are_opened_ahead() -> None:
    async def check(bench: Bench) -> None:
        await bench.pool.keep_spare(3)
        assert bench.pool.idle == 3
        await bench.pool.keep_spare(3)
        assert bench.pool.idle == 3
        bench.send()
        assert bench.pool.idle == 2
        assert (await bench.ended()).is_ok
        assert bench.pool.idle == 3

    run_with(serve_well, check)


def test_idle_connections_that_the_server_closes_are_forgotten() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        writer.close()

    async def check(bench: Bench) -> None:
        await bench.pool.open_ahead(1)
        async with asyncio.timeout(PATIENCE_S):
            while bench.pool.idle:
                await asyncio.sleep(0.01)

    run_with(serve, check)


def test_past_the_cap_a_request_fails_at_once() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def check(bench: Bench) -> None:
        for _ in range(5):
            bench.send()
        ended = await bench.ended()
        assert "more than 4 connections" in (ended.error or "")

    run_with(serve, check)


def test_ipv6() -> None:
    async def check(bench: Bench) -> None:
        bench.send()
        assert (await bench.ended()).is_ok

    try:
        run_with(serve_well, check, "::1")
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")


def test_a_host_name_is_looked_up() -> None:
    async def check(bench: Bench) -> None:
        named = Bench(Target(f"http://localhost:{bench.target.port}"))
        named.send()
        assert (await named.ended()).is_ok
        await named.pool.close()

    run_with(serve_well, check)


def test_nobody_there_is_an_error_of_its_own() -> None:
    async def run() -> None:
        bench = Bench(Target("http://127.0.0.1:9"))
        bench.send()
        ended = await bench.ended()
        assert ended.trouble is Trouble.NO_CONNECTION
        assert "cannot connect" in (ended.error or "")
        with pytest.raises(OSError, match="9"):
            await bench.pool.open_ahead(1)
        await bench.pool.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "interim", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nA: b\r\n\r\n"]
)
def test_interim_answers_are_passed_over(interim: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(interim + OK)
        writer.close()

    async def check(bench: Bench) -> None:
        bench.send()
        ended = await bench.ended()
        assert (ended.status, ended.rest) == (200, b"{}")

    run_with(serve, check)
