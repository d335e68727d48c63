"""Connections: how many there may be, and those that never say anything."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from aiohttp import web

from sglang_bana.config import LimitsConfig
from sglang_bana.router.doorway import Doorway
from sglang_bana.router.serving import bound_connections

PATIENCE_S = 30.0
CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
Door = Callable[..., AbstractAsyncContextManager[Any]]


PING = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


def test_a_connection_too_many_is_told_so_and_the_others_are_served(door: Door) -> None:
    async def run() -> None:
        async with door(limits={"max_connections": 3}) as front:
            host, port = front.url.removeprefix("http://").split(":")
            for _ in range(5):
                # One that came and went without a word leaves no room behind.
                _, gone = await asyncio.open_connection(host, int(port))
                gone.close()
                await gone.wait_closed()
            assert (await front.post(CHAT, HELLO)).status == 200
            idle = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
            async with asyncio.timeout(PATIENCE_S):
                for reader, writer in idle:
                    writer.write(PING)
                    assert b" 200 " in await reader.readuntil(b"\r\n")
                refused, opened = await asyncio.open_connection(host, int(port))
                head, _, body = (await refused.read()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After: 1" in head
            assert json.loads(body)["error"]["code"] == "too_many_connections"
            assert (await front.post(CHAT, HELLO)).status == 200
            for writer in (opened, *(w for _, w in idle)):
                writer.close()

    asyncio.run(run())


def test_those_that_never_asked_make_room_for_those_that_do(door: Door) -> None:
    async def run() -> None:
        async with door(limits={"max_connections": 3}) as front:
            host, port = front.url.removeprefix("http://").split(":")
            mute = [await asyncio.open_connection(host, int(port)) for _ in range(12)]
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(PING)
                assert b" 200 " in await reader.readuntil(b"\r\n")
                assert await mute[0][0].read() == b""
            for opened in (writer, *(w for _, w in mute)):
                opened.close()

    asyncio.run(run())


def test_a_burst_beyond_the_bound_is_answered_at_once_and_bounded(door: Door) -> None:
    async def run() -> None:
        async with door(limits={"max_connections": 4}) as front:
            host, port = front.url.removeprefix("http://").split(":")
            loop = asyncio.get_running_loop()
            # The kernel connects them while this loop stands still, which then accepts all in one.
            burst = [socket.create_connection((host, int(port))) for _ in range(20)]
            for client in burst:
                client.sendall(PING)
                client.setblocking(False)
            async with asyncio.timeout(PATIENCE_S):
                heads = await asyncio.gather(*(loop.sock_recv(c, 12) for c in burst))
            # The harness keeps a connection of its own.
            assert sorted(heads) == [b"HTTP/1.1 200"] * 3 + [b"HTTP/1.1 503"] * 17
            for client in burst:
                client.close()

            async def has_room() -> bool:
                return bool((await front.post(CHAT, HELLO)).status == 200)

            await front.wait_until(has_room)

    asyncio.run(run())


def test_a_client_that_still_sends_is_told_why_it_is_refused(door: Door) -> None:
    async def run() -> None:
        # The harness keeps the one connection.
        async with door(limits={"max_connections": 1}) as front, asyncio.timeout(PATIENCE_S):
            host, port = front.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n".encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert json.loads(body)["error"]["code"] == "too_many_connections"
            for _ in range(3):
                # On a connection that was reset the second of these fails.
                writer.write(b"more")
                await writer.drain()
                await asyncio.sleep(0.05)
            writer.close()
            await writer.wait_closed()

    asyncio.run(run())


def test_connections_wait_while_the_front_door_has_no_time(door: Door) -> None:
    async def run() -> None:
        async with door() as front:
            host, port = front.url.removeprefix("http://").split(":")
            # This loop, which should accept them, stands still meanwhile.
            burst = [socket.create_connection((host, int(port)), 5.0) for _ in range(300)]
            assert (await front.post(CHAT, HELLO)).status == 200
            for client in burst:
                client.close()

    asyncio.run(run())


class _Line(asyncio.Transport):
    """A transport that carries nothing."""

    def close(self) -> None: ...


def test_none_of_a_burst_makes_room_for_another() -> None:
    async def run() -> None:
        doorway = Doorway(max_connections=2, patience_s=PATIENCE_S, idle_s=PATIENCE_S)

        async def answer(request: web.BaseRequest) -> web.Response:
            doorway.note_request(request)
            return web.Response(text="here")

        server = web.Server(answer)
        # As asyncio does it: protocols first, transports later.
        protocols = [doorway.accept(server) for _ in range(4)]
        assert [isinstance(p, web.RequestHandler) for p in protocols] == [True, True, False, False]
        # One that is gone before it said anything leaves its place to one other.
        gone = protocols[0]
        gone.connection_made(_Line())
        gone.connection_lost(None)
        later = [doorway.accept(server) for _ in range(2)]
        assert [isinstance(p, web.RequestHandler) for p in later] == [True, False]
        await server.shutdown(1.0)

    asyncio.run(run())


def test_only_a_connection_that_stays_silent_is_closed() -> None:
    async def run() -> None:
        doorway = Doorway(max_connections=10, patience_s=0.5, idle_s=PATIENCE_S)

        async def answer(request: web.BaseRequest) -> web.Response:
            doorway.note_request(request)
            return web.Response(text="here")

        server = web.Server(answer)
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(lambda: doorway.accept(server), "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        spoken, speaker = await asyncio.open_connection("127.0.0.1", port)
        silent, mute = await asyncio.open_connection("127.0.0.1", port)
        ask = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
        async with asyncio.timeout(PATIENCE_S):
            ending = asyncio.create_task(silent.read())
            while not ending.done():
                speaker.write(ask)
                assert await spoken.readuntil(b"here")
                await asyncio.sleep(0.05)
            assert ending.result() == b""
            speaker.write(ask)
            assert await spoken.readuntil(b"here")
        speaker.close()
        mute.close()
        listener.close()
        await server.shutdown(1.0)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("files", "max_connections", "max_requests", "bound"),
    [
        (100_256, 5, 10, 5),
        # Only requests in flight need files of their own.
        (20_256, 16_384, 4000, 12_000),
        (20_256, 1_000_000, 100, 19_800),
        (1256, 16_384, 4000, 500),
        (100, 16_384, 4000, 1),
    ],
)
def test_open_files_bound_the_connections_as_well(
    monkeypatch: pytest.MonkeyPatch, files: int, max_connections: int, max_requests: int, bound: int
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (files, files))
    limits = LimitsConfig(max_connections=max_connections, max_requests=max_requests)
    assert bound_connections(limits) == bound


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"NONSENSE\r\n\r\n", 400, "invalid_http"),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n", 400, "invalid_http"),
        (b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n", 400, "invalid_http"),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nExpect: tea\r\n\r\n", 417, "expectation_failed"),
    ],
    ids=["no request", "no header", "no length", "no expectation"],
)
def test_what_is_no_http_gets_an_error_object(
    door: Door, sent: bytes, status: int, code: str
) -> None:
    async def run() -> None:
        async with door() as front, asyncio.timeout(PATIENCE_S):
            host, port = front.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            error = json.loads(await reader.readexactly(length))["error"]
            # What sent no version is answered in HTTP/1.0.
            assert head.split(b" ")[1] == b"%d" % status
            assert error["code"] == code
            assert error["type"] == "invalid_request_error"
            writer.close()
            assert (await front.post(CHAT, HELLO)).status == 200

    asyncio.run(run())


def test_a_body_is_sent_once_the_client_was_told_to_go_on(door: Door) -> None:
    async def run() -> None:
        async with door() as front, asyncio.timeout(PATIENCE_S):
            host, port = front.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            body = json.dumps(HELLO).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
            assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
            writer.write(body)
            assert b" 200 " in await reader.readuntil(b"\r\n")
            writer.close()

    asyncio.run(run())
