"""A client that goes away is aborted upstream at once, and nothing of it stays behind."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp
import pytest

from bana.eval.stub import Fault, StubSettings

CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
SLOW = {"first_delay_s": 30.0}
Door = Callable[..., AbstractAsyncContextManager[Any]]


async def _leave(front: Any, path: str, body: object, *, after_first_chunk: bool) -> None:
    reply = None
    posting = asyncio.create_task(front.client.post(front.url + path, json=body))
    if after_first_chunk:
        reply = await posting
        await reply.content.readany()
        reply.close()
    else:
        await front.wait_until(lambda: front.seen(path))
        posting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await posting


@pytest.mark.parametrize(
    ("path", "body", "stub"),
    [
        (CHAT, {**HELLO, "stream": True}, {"chunks": 1000, "chunk_interval_s": 0.1}),
        (CHAT, {**HELLO, "stream": True}, SLOW),
        (CHAT, HELLO, SLOW),
        ("/generate", {"text": "hi"}, SLOW),
    ],
)
def test_leaving_aborts_upstream(
    door: Door, path: str, body: dict[str, Any], stub: dict[str, Any]
) -> None:
    async def run() -> None:
        async with door(StubSettings(name="a", **stub)) as front:
            begun = "chunks" in stub
            await _leave(front, path, body, after_first_chunk=begun)
            (seen,) = front.seen(path)
            await front.wait_until(lambda: seen.body["rid"] in front.aborts())
            await front.wait_until(lambda: len(front.running.door.flights) == 0)
            # The upstream connection is gone as well.
            await front.wait_until(lambda: seen.outcome == "cancelled")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "body", "count"),
    [
        ("/generate", {"text": ["a", "b", "c"]}, 3),
        ("/generate", {"input_ids": [[1, 2], [3]]}, 2),
        ("/v1/completions", {"model": "m", "prompt": ["a", "b"]}, 2),
        ("/v1/embeddings", {"model": "m", "input": ["a", "b"]}, 2),
    ],
)
def test_leaving_aborts_every_item_of_a_batch(
    door: Door, path: str, body: dict[str, Any], count: int
) -> None:
    async def run() -> None:
        async with door(StubSettings(name="a", **SLOW)) as front:
            await _leave(front, path, body, after_first_chunk=False)
            (seen,) = front.seen(path)
            rid = seen.body["rid"]
            # SGLang itself names the items of a generation; embeddings want the list.
            items = rid if isinstance(rid, list) else [f"{rid}_{i}" for i in range(count)]
            assert len(items) == count
            await front.wait_until(lambda: set(items) <= set(front.aborts()))

    asyncio.run(run())


def test_rids_have_one_length_so_none_is_a_prefix_of_another(door: Door) -> None:
    async def run() -> None:
        async with door() as front:
            for body in ({"text": "a"}, {"text": "a", "rid": "x"}, {"text": ["a"], "rid": "xy"}):
                assert (await front.post("/generate", body)).status == 200
            rids = [seen.body["rid"] for seen in front.seen("/generate")]
            assert {len(rid) for rid in rids} == {32}
            assert len(set(rids)) == 3

    asyncio.run(run())


def test_a_thousand_clients_leave_at_random_and_nothing_stays(door: Door) -> None:
    async def visit(front: Any, rng: random.Random) -> None:
        body = {**HELLO, "stream": rng.random() < 0.7}
        try:
            async with asyncio.timeout(rng.uniform(0.01, 3.0)):
                await front.post(CHAT, body)
        except (TimeoutError, aiohttp.ClientError):
            pass

    async def run() -> None:
        stub = {"chunks": 20, "chunk_interval_s": 0.1, "first_delay_s": 0.1}
        async with door(StubSettings(name="a", **stub), StubSettings(name="b", **stub)) as front:
            rng = random.Random(1)
            async with asyncio.TaskGroup() as group:
                for _ in range(1000):
                    group.create_task(visit(front, rng))
            await front.wait_until(lambda: len(front.running.door.flights) == 0)
            await front.wait_until(lambda: not any(s.server.log.generating for s in front.stubs))
            status = await front.status()
            assert status["in_flight"] == 0
            assert [i["in_flight"] for i in status["instances"]] == [0, 0]
            left = {r.body["rid"] for r in front.seen(CHAT) if r.outcome == "cancelled"}
            assert left
            await front.wait_until(lambda: left <= set(front.aborts()))
            assert (await front.post(CHAT, HELLO)).status == 200

    asyncio.run(run())


def test_callers_abort_their_own_requests_by_their_own_names(door: Door) -> None:
    async def run() -> None:
        async with door(StubSettings(name="a", fault=Fault.HANG)) as front:
            body = {"text": "hi", "rid": "my-own-rid"}
            posting = asyncio.create_task(front.post("/generate", body))
            await front.wait_until(lambda: front.seen("/generate"))
            (seen,) = front.seen("/generate")
            await front.post("/abort_request", {"rid": "my-own"})
            assert not front.aborts()
            assert (await front.post("/abort_request", {"rid": "my-own-rid"})).status == 200
            await front.wait_until(lambda: seen.body["rid"] in front.aborts())
            refused = await front.post("/abort_request", {"abort_all": True})
            assert (refused.status, refused.code) == (403, "admin_key_unset")
            posting.cancel()

    asyncio.run(run())


def test_a_client_that_never_takes_its_whole_answer_is_cut_off(door: Door) -> None:
    async def run() -> None:
        limits = {"stall_timeout_s": 0.5, "max_requests": 1}
        async with door(StubSettings(name="a", chunks=400_000), limits=limits) as front:
            host, port = front.url.removeprefix("http://").split(":")
            body = json.dumps(HELLO)
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            with socket.socket() as deaf:
                # No more than this reaches it unread.
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                deaf.connect((host, int(port)))
                deaf.sendall((head + body).encode())
                await front.wait_until(lambda: [r.outcome for r in front.seen(CHAT)] == ["ok"])
                # While it is written it is a request in flight …
                assert (await front.post(CHAT, HELLO)).code == "overloaded"
                # … and no longer than the stall deadline allows.
                await front.wait_until(lambda: len(front.running.door.flights) == 0)
                received = await asyncio.to_thread(_drain, deaf)
                assert received < 400_000
            assert (await front.post("/v1/tokenize", {})).status == 200

    asyncio.run(run())


def _drain(client: socket.socket) -> int:
    """How many bytes still come."""
    client.settimeout(30.0)
    received = 0
    try:
        while chunk := client.recv(65_536):
            received += len(chunk)
    except ConnectionError:
        pass
    return received
