"""Overload, oversize and malformed input are refused promptly, before any instance sees them."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from yarl import URL

from bana.eval.stub import Fault, StubSettings

PATIENCE_S = 30.0
CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
Door = Callable[..., AbstractAsyncContextManager[Any]]


def test_overload_is_a_prompt_429(door: Door) -> None:
    async def run() -> None:
        hanging = StubSettings(name="a", fault=Fault.HANG)
        limits = {"max_requests": 3, "retry_after_s": 2.5}
        async with door(hanging, limits=limits) as front:
            full = [asyncio.create_task(front.post(CHAT, HELLO)) for _ in range(3)]
            await front.wait_until(lambda: len(front.seen(CHAT)) == 3)
            reply = await front.post(CHAT, HELLO)
            assert (reply.status, reply.code) == (429, "overloaded")
            assert reply.error["type"] == "rate_limit_error"
            assert reply.headers["Retry-After"] == "3"
            assert reply.headers["retry-after-ms"] == "2500"
            # Probes are answered under full load.
            for path in ("/livez", "/readyz", "/health", "/ready", "/health_generate", "/ping"):
                assert (await front.get(path)).status == 200
            for task in full:
                task.cancel()

    asyncio.run(run())


@pytest.mark.parametrize(
    "body", [b"{bad", b"[1, 2]", b"", b'"text"', b'{"a": "\xff"}', b"[" * 100_000]
)
def test_malformed_json_never_reaches_an_instance(door: Door, body: bytes) -> None:
    async def run() -> None:
        async with door() as front:
            for path in (CHAT, "/generate", "/v1/tokenize"):
                reply = await front.post(path, body)
                assert (reply.status, reply.code) == (400, "invalid_json")
            assert not any(stub.server.log.requests for stub in front.stubs)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "param"),
    [('"max_tokens": 1e400', "max_tokens"), ('"session_params": {"id": 1e400}', "session_params")],
)
def test_numbers_that_nobody_can_read_are_a_400(door: Door, text: str, param: str) -> None:
    async def run() -> None:
        async with door() as front:
            reply = await front.post(CHAT, f'{{"messages": [], {text}}}'.encode())
            assert (reply.status, reply.code) == (400, "invalid_request")
            assert reply.error["param"] == param
            assert not front.seen(CHAT)

    asyncio.run(run())


def test_a_body_that_cannot_be_unpacked_is_a_400(door: Door) -> None:
    async def run() -> None:
        async with door() as front:
            reply = await front.post(CHAT, b"no gzip", {"Content-Encoding": "gzip"})
            assert (reply.status, reply.code) == (400, "invalid_body")

    asyncio.run(run())


def test_a_body_that_stands_still_gives_its_place_back(door: Door) -> None:
    async def run() -> None:
        limits = {"body_timeout_s": 0.3, "max_requests": 1}
        async with door(limits=limits) as front, asyncio.timeout(PATIENCE_S):
            host, port = front.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{{".encode()
            )
            await front.wait_until(lambda: len(front.running.door.flights) == 1)
            assert (await front.post(CHAT, HELLO)).code == "overloaded"
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 408 ")
            assert b"x-bana-error: request_timeout" in head
            assert (await front.post(CHAT, HELLO)).status == 200
            writer.close()

    asyncio.run(run())


def test_a_body_that_comes_slowly_is_read_whole(door: Door) -> None:
    async def send() -> AsyncIterator[bytes]:
        for piece in [b'{"messages": [', *[b" "] * 6, b"]}"]:
            yield piece
            await asyncio.sleep(0.25)

    async def run() -> None:
        # Its pieces take longer together than any pause may.
        async with door(limits={"body_timeout_s": 1.2}) as front:
            headers = {"Content-Type": "application/json"}
            async with front.client.post(front.url + CHAT, data=send(), headers=headers) as reply:
                assert reply.status == 200
            (seen,) = front.seen(CHAT)
            assert seen.body["messages"] == []
        limits = {"body_timeout_s": 1.2, "stall_timeout_s": 0.6}
        async with door(limits=limits) as front:
            late = front.client.post(front.url + CHAT, data=send())
            async with late as reply:
                assert reply.status == 408

    asyncio.run(run())


def test_a_large_body_is_a_413(door: Door) -> None:
    async def run() -> None:
        async with door(limits={"max_body_bytes": 2048}) as front:
            reply = await front.post(CHAT, {**HELLO, "padding": "x" * 4096})
            assert (reply.status, reply.code) == (413, "body_too_large")
            packed = gzip.compress(json.dumps({**HELLO, "padding": "x" * 40_960}).encode())
            assert len(packed) < 2048
            bomb = await front.post(CHAT, packed, {"Content-Encoding": "gzip"})
            assert (bomb.status, bomb.code) == (413, "body_too_large")
            abort = await front.post("/abort_request", {"rid": "x" * 4096})
            assert (abort.status, abort.code) == (413, "body_too_large")
            assert not front.seen(CHAT)

    asyncio.run(run())


def test_compressed_bodies_are_read(door: Door) -> None:
    async def run() -> None:
        async with door() as front:
            packed = gzip.compress(json.dumps(HELLO).encode())
            assert (await front.post(CHAT, packed, {"Content-Encoding": "gzip"})).status == 200
            (seen,) = front.seen(CHAT)
            assert seen.body["messages"] == HELLO["messages"]

    asyncio.run(run())


def test_duplicate_request_ids_get_a_suffix(door: Door) -> None:
    async def run() -> None:
        async with door(StubSettings(name="a", first_delay_s=0.5)) as front:
            named = {"x-request-id": "same"}
            replies = await asyncio.gather(*(front.post(CHAT, HELLO, named) for _ in range(3)))
            ids = sorted(reply.headers["x-request-id"] for reply in replies)
            assert ids == ["same", "same-2", "same-3"]
            again = await front.post(CHAT, HELLO, named)
            assert again.headers["x-request-id"] == "same"

    asyncio.run(run())


def test_a_clients_rid_is_its_request_id_unless_it_sends_one(door: Door) -> None:
    async def run() -> None:
        async with door() as front:
            body = {**HELLO, "rid": "my-rid"}
            assert (await front.post(CHAT, body)).headers["x-request-id"] == "my-rid"
            named = await front.post(CHAT, body, {"x-request-id": "outer"})
            assert named.headers["x-request-id"] == "outer"
            plain = await front.post(CHAT, HELLO)
            assert plain.headers["x-request-id"] == plain.headers["x-bana-rid"]
            bad = await front.post(CHAT, HELLO, {"x-request-id": "two words"})
            assert (bad.status, bad.code) == (400, "request_id_invalid")

    asyncio.run(run())


def test_unknown_and_refused_paths_say_why(door: Door) -> None:
    async def run() -> None:
        async with door() as front:
            unknown = await front.post("/v2/everything", {})
            assert (unknown.status, unknown.code) == (404, "path_unknown")
            broken = await front.client.get(URL(front.url + "/a%0Ab", encoded=True))
            assert (await broken.json())["error"]["code"] == "path_unknown"
            refused = await front.post("/pd_role_switch", {})
            assert (refused.status, refused.code) == (404, "path_refused")
            assert "call that instance directly" in refused.error["message"]
            method = await front.get(CHAT)
            assert (method.status, method.code) == (405, "method_not_allowed")
            assert method.headers["Allow"] == "POST"

    asyncio.run(run())


def test_ten_thousand_quick_requests_lose_nothing(door: Door) -> None:
    async def run() -> None:
        async with door() as front:
            numbers = iter(range(10_000))
            answered: list[int] = []

            async def work() -> None:
                for number in numbers:
                    reply = await front.post("/v1/tokenize", {"n": number})
                    assert reply.status == 200
                    answered.append(reply.json()["body"]["n"])

            await asyncio.gather(*(work() for _ in range(64)))
            assert sorted(answered) == list(range(10_000))
            assert len(front.running.door.flights) == 0

    asyncio.run(run())
