"""Instances are found up, suspect, down and up again, and work follows."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.client_reqrep import ConnectionKey

from bana.eval.stub import Fault, StubSettings, run_stub
from sglang_bana.router.upstream import InstanceDied, is_refusal

CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
Door = Callable[..., AbstractAsyncContextManager[Any]]
_ADDRESS = ConnectionKey("a", 1, False, True, None, None, None)


def _connector_error(number: int) -> aiohttp.ClientConnectorError:
    return aiohttp.ClientConnectorError(_ADDRESS, OSError(number, "said the system"))


@pytest.mark.parametrize(
    ("error", "is_meant"),
    [
        (_connector_error(errno.ECONNREFUSED), True),
        (InstanceDied(), True),
        # Our own open files or ports are used up: the instance may be well.
        (_connector_error(errno.EMFILE), False),
        (_connector_error(errno.EADDRNOTAVAIL), False),
        # A frozen process lets connections time out; the watch judges its silence.
        (aiohttp.ConnectionTimeoutError(), False),
        (aiohttp.ServerDisconnectedError(), False),
    ],
)
def test_only_a_refusal_proves_that_nobody_listens(error: Exception, is_meant: bool) -> None:
    assert is_refusal(error) is is_meant


def test_a_silent_scheduler_is_suspect_and_its_waiting_requests_move(
    door: Door, tmp_path: Path
) -> None:
    async def run() -> None:
        stubs = [
            StubSettings(name=name, load_endpoint=f"ipc://{tmp_path}/{name}.ipc", fault=fault)
            for name, fault in (("a", Fault.HANG), ("b", Fault.NONE))
        ]
        config = {"routing": {"policy": "round_robin"}, "supervisor": {"suspect_after_s": 2.0}}
        async with door(*stubs, **config) as front:

            async def is_proven() -> bool:
                proofs = [i["proof"] for i in (await front.status())["instances"]]
                return all(p and p["scheduler_class"] == "StubServer" for p in proofs)

            await front.wait_until(is_proven)
            posting = asyncio.create_task(front.post(CHAT, HELLO))
            await front.wait_until(lambda: front.seen(CHAT))
            (waiting,) = front.seen(CHAT)
            mute = front.stubs[0].server
            mute.is_muted = True
            await front.wait_states(a="suspect", b="up")
            reply = await posting
            assert (reply.status, reply.headers["x-bana-instance"]) == (200, "b")
            await front.wait_until(lambda: waiting.body["rid"] in front.aborts())
            for _ in range(4):
                assert (await front.post(CHAT, HELLO)).headers["x-bana-instance"] == "b"
            mute.is_muted = False
            await front.wait_states(a="up", b="up")

    asyncio.run(run())


def test_a_stopped_process_is_suspect_until_it_goes_on(
    door_process: Door, stub_processes: Any
) -> None:
    async def run() -> None:
        stubs = stub_processes(StubSettings(name="a"), StubSettings(name="b"))
        async with door_process(
            [(s.name, s.url) for s in stubs], supervisor={"suspect_after_s": 2.0}
        ) as front:
            await front.wait_states(a="up", b="up")
            os.kill(stubs[0].process.pid, signal.SIGSTOP)
            replies = await asyncio.gather(*(front.post(CHAT, HELLO) for _ in range(8)))
            assert {r.status for r in replies} == {200}
            assert {r.headers["x-bana-instance"] for r in replies} == {"b"}
            await front.wait_states(a="suspect", b="up")
            os.kill(stubs[0].process.pid, signal.SIGCONT)
            await front.wait_states(a="up", b="up")

    asyncio.run(run())


def test_an_instance_becomes_ready_when_it_says_so(door: Door) -> None:
    async def run() -> None:
        async with door(StubSettings(name="a", is_ready=False)) as front:
            assert (await front.get("/readyz")).status == 503
            server = front.stubs[0].server
            server.settings = StubSettings(name="a", secret=server.settings.secret)
            await front.wait_states(a="up")
            assert (await front.get("/readyz")).status == 200

    asyncio.run(run())


def test_nobody_is_thrown_out_when_there_is_nowhere_else_to_go(
    door_process: Door, stub_processes: Any
) -> None:
    async def run() -> None:
        (stub,) = stub_processes(StubSettings(name="a", first_delay_s=1.0))
        async with door_process([("a", stub.url)], supervisor={"suspect_after_s": 1.0}) as front:
            waiting = asyncio.create_task(front.post(CHAT, HELLO))
            await asyncio.sleep(0.3)
            os.kill(stub.process.pid, signal.SIGSTOP)
            await front.wait_states(a="suspect")
            assert (await front.post(CHAT, HELLO)).code == "no_instance"
            os.kill(stub.process.pid, signal.SIGCONT)
            assert (await waiting).status == 200

    asyncio.run(run())


def test_a_server_that_denies_our_key_is_not_ready_and_the_remedy_is_told(
    door_before: Door,
) -> None:
    async def run() -> None:
        async with (
            run_stub(StubSettings(name="far", secret="another")) as stub,
            door_before([("far", stub.url)], states={"far": "starting"}) as front,
        ):

            async def is_told() -> bool:
                return bool((await front.status())["warnings"])

            await front.wait_until(is_told)
            status = await front.status()
            assert "--upstream-key-file" in status["warnings"][0]
            assert stub.url in status["warnings"][0]
            assert status["instances"][0]["trouble"] in status["warnings"][0]
            assert (await front.get("/readyz")).status == 503
            stub.server.settings = StubSettings(name="far")
            await front.wait_states(far="up")
            assert (await front.status())["warnings"] == []
            assert (await front.get("/readyz")).status == 200
            # A key that is taken back later.
            stub.server.settings = StubSettings(name="far", secret="another")
            await front.wait_until(is_told)
            assert (await front.get("/readyz")).status == 503
            assert (await front.post(CHAT, HELLO)).code == "instance_refused_key"

    asyncio.run(run())


def test_why_a_server_takes_no_work_is_told(door_before: Door) -> None:
    async def run() -> None:
        with socket.socket() as nobody:
            # Bound and not listening: connections are refused.
            nobody.bind(("127.0.0.1", 0))
            away = f"http://127.0.0.1:{nobody.getsockname()[1]}"
            async with (
                run_stub(StubSettings(name="late", is_ready=False)) as stub,
                door_before(
                    [("away", away), ("late", stub.url)],
                    states={"away": "starting", "late": "starting"},
                ) as front,
            ):

                async def are_told() -> bool:
                    told = [i["trouble"] for i in (await front.status())["instances"]]
                    return told == ["Connection refused", "it answers /ready with 503"]

                await front.wait_until(are_told)

    asyncio.run(run())


def test_loads_that_nobody_can_read_end_no_front_door(door_before: Door, serving: Door) -> None:
    async def run() -> None:
        asked: list[str] = []

        async def tell(_: web.Request) -> web.StreamResponse:
            asked.append("loads")
            return web.Response(text="<html>")

        rules = {"suspect_after_s": 2.0}
        async with (
            serving(v1_loads=tell) as url,
            door_before([("a", url)], supervisor=rules) as front,
        ):
            await front.wait_until(lambda: len(asked) > 2)
            assert not front.running.background.done()
            await front.wait_states(a="up")

    asyncio.run(run())
