"""Administration reaches every instance, with a result for each, and tells no secret."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from aiohttp import web

from bana.eval.stub import StubSettings
from sglang_bana.router.redact import redact_info, redact_value

ADMIN = {"Authorization": "Bearer the-admin-key"}
AUTH = {"admin_api_key": "the-admin-key"}
Door = Callable[..., AbstractAsyncContextManager[Any]]


def test_every_instance_is_asked_and_answers(door: Door) -> None:
    async def run() -> None:
        async with door(auth=AUTH) as front:
            refused = await front.post("/flush_cache")
            assert (refused.status, refused.code) == (401, "invalid_api_key")
            body = {"model_path": "/weights"}
            reply = await front.post("/update_weights_from_disk?x=1", body, ADMIN)
            assert reply.status == 200
            results = reply.json()["results"]
            assert {name: r["status"] for name, r in results.items()} == {"a": 200, "b": 200}
            assert results["a"]["body"]["body"] == body
            assert len(front.seen("/update_weights_from_disk")) == 2
            # A frontend program flushes with a POST that has no body.
            assert (await front.post("/flush_cache", b"", ADMIN)).status == 200

    asyncio.run(run())


def test_an_instance_that_could_not_be_asked_is_named(door: Door) -> None:
    async def run() -> None:
        stubs = (StubSettings(name="a"), StubSettings(name="b", is_ready=False))
        async with door(*stubs, auth=AUTH) as front:
            reply = await front.post("/flush_cache", None, ADMIN)
            assert (reply.status, reply.code) == (502, "broadcast_failed")
            assert reply.json()["results"]["a"]["status"] == 200
            assert reply.json()["results"]["b"]["error"] == "the instance is starting"
            assert "b" in reply.error["message"]

    asyncio.run(run())


def test_server_info_tells_no_secret(door: Door) -> None:
    async def run() -> None:
        async with door() as front:
            for path in ("/server_info",):
                reply = await front.get(path)
                assert reply.status == 200
                assert b"the-secret-of-this-run" not in reply.body
                assert reply.json()["api_key"] == "<redacted>"
                assert reply.json()["launch_command"] == "serve --api-key <redacted>"

    asyncio.run(run())


def test_redaction_goes_by_name_and_value() -> None:
    body = b'{"admin_api_key":"x","a":[{"ssl_keyfile_password":"y"}],"b":"pre-s3cret","c":null}'
    assert redact_info(body, "s3cret") == (
        b'{"admin_api_key":"<redacted>","a":[{"ssl_keyfile_password":"<redacted>"}],'
        b'"b":"pre-<redacted>","c":null}'
    )
    assert redact_info(b"not json s3cret", "s3cret") == b"{}"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("serve --api-key hunter2 --port 1", "serve --api-key <redacted> --port 1"),
        ("serve --admin-api-key=hunter2", "serve --admin-api-key=<redacted>"),
        ("--ssl-keyfile-password two words --port 1", "--ssl-keyfile-password <redacted> --port 1"),
        ("--hf-token t --token x", "--hf-token <redacted> --token <redacted>"),
        ("--client-secret s", "--client-secret <redacted>"),
        ("--max-total-tokens 77 --tokenizer-path /t", "--max-total-tokens 77 --tokenizer-path /t"),
        ("--any-key --port 1", "--any-key --port 1"),
        ("ask for --port", "ask for --port"),
    ],
)
def test_options_of_a_command_line_are_redacted_by_name(command: str, told: str) -> None:
    assert redact_value({"launch_command": command}, "") == {"launch_command": told}


def test_a_secret_is_redacted_wherever_it_recurs() -> None:
    # argparse completes the beginning of an option, which no list of names would find.
    body = b'{"admin_api_key":"hunter2","launch_command":"serve --admin-a hunter2","n":["hunter2"]}'
    assert b"hunter2" not in redact_info(body, "another")
    # A short one is left alone elsewhere: it is a part of other words.
    assert redact_value({"api_key": "e", "name": "here"}, "")["name"] == "here"


def test_what_comes_without_its_length_tells_no_secret_either(
    door_before: Door, serving: Door
) -> None:
    async def tell(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(b'{"admin_api_key": "hunter2", ')
        await response.write(b'"launch_command": "serve --admin-api-key hunter2"}')
        await response.write_eof()
        return response

    async def run() -> None:
        async with serving(server_info=tell) as url, door_before([("a", url)]) as front:
            reply = await front.get("/server_info")
            assert reply.status == 200
            assert reply.json() == {
                "admin_api_key": "<redacted>",
                "launch_command": "serve --admin-api-key <redacted>",
            }

    asyncio.run(run())


def _flush_slowly(started: asyncio.Event, finishing: asyncio.Event) -> Any:
    async def flush(_: web.Request) -> web.StreamResponse:
        started.set()
        await finishing.wait()
        return web.json_response({"done": True})

    return flush


def test_draining_waits_for_a_broadcast_and_the_end_takes_no_other(
    door_before: Door, serving: Door
) -> None:
    async def run() -> None:
        started, finishing = asyncio.Event(), asyncio.Event()
        async with (
            serving(flush_cache=_flush_slowly(started, finishing)) as url,
            door_before([("a", url)], auth=AUTH) as front,
        ):
            flushing = asyncio.create_task(front.post("/flush_cache", None, ADMIN))
            await started.wait()
            draining = asyncio.create_task(front.running.door.drain())
            await front.wait_until(lambda: front.running.door.local.is_draining)
            refused = await front.post("/flush_cache", None, ADMIN)
            assert (refused.status, refused.code) == (503, "draining")
            # Nor is there a way back.
            async with front.client.delete(front.url + "/bana/drain", headers=ADMIN) as reply:
                assert (await reply.json())["is_draining"]
            assert not draining.done()
            finishing.set()
            assert (await flushing).json()["success"]
            await draining

    asyncio.run(run())


def test_a_broadcast_that_outlives_the_drain_ends_with_a_clear_error(
    door_before: Door, serving: Door
) -> None:
    async def run() -> None:
        started = asyncio.Event()
        limits = {"drain_timeout_s": 0.2}
        async with (
            serving(flush_cache=_flush_slowly(started, asyncio.Event())) as url,
            door_before([("a", url)], auth=AUTH, limits=limits) as front,
        ):
            flushing = asyncio.create_task(front.post("/flush_cache", None, ADMIN))
            await started.wait()
            await front.running.door.drain()
            reply = await flushing
            assert (reply.status, reply.code) == (503, "draining")
            assert len(front.running.door.flights) == 0

    asyncio.run(run())


def test_a_drain_on_request_is_a_time_to_administrate(door: Door) -> None:
    async def run() -> None:
        async with door(auth=AUTH) as front:
            assert (await front.post("/bana/drain", None, ADMIN)).status == 200
            assert (await front.post("/v1/tokenize", {}, ADMIN)).code == "draining"
            assert (await front.post("/flush_cache", None, ADMIN)).status == 200

    asyncio.run(run())
