"""Requests reach an instance and answers come back, whatever happens to the instance."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp
import pytest

from bana.eval.stub import Fault, StubSettings

CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
STREAM = {**HELLO, "stream": True}
DONE = b"data: [DONE]\n\n"

Door = Callable[..., AbstractAsyncContextManager[Any]]


def _stub(name: str, **options: Any) -> StubSettings:
    return StubSettings(name=name, **options)


def _error_event(body: bytes) -> Any:
    last = body.decode().strip().split("\n\n")[-1]
    return json.loads(last.removeprefix("data: "))["error"]


def test_an_answer_names_its_request_and_instance(door: Door) -> None:
    async def run() -> None:
        async with door() as front:
            reply = await front.post(CHAT, HELLO, {"x-request-id": "mine", "traceparent": "00-ab"})
            assert reply.status == 200
            assert reply.json()["choices"][0]["message"]["content"] == "x" * 8
            assert reply.headers["x-request-id"] == "mine"
            assert reply.headers["x-bana-instance"] in ("a", "b")
            (seen,) = front.seen(CHAT)
            assert seen.headers["X-Request-ID"] == "mine"
            assert seen.headers["traceparent"] == "00-ab"
            assert seen.body["rid"] == reply.headers["x-bana-rid"]

    asyncio.run(run())


def test_a_stream_arrives_event_by_event(door: Door) -> None:
    async def run() -> None:
        slow = _stub("a", chunks=3, chunk_interval_s=0.2)
        async with door(slow) as front, front.client.post(front.url + CHAT, json=STREAM) as reply:
            first = await reply.content.readany()
            assert first.count(b"data: ") == 1
            rest = await reply.content.read()
            assert (first + rest).endswith(DONE)
            assert reply.headers["Content-Type"].startswith("text/event-stream")

    asyncio.run(run())


def test_the_clients_key_and_inner_headers_stay_outside(door: Door) -> None:
    async def run() -> None:
        async with door() as front:
            sent = {
                "Authorization": "Bearer of-the-client",
                "x-api-key": "k",
                "x-override-rid": "evil",
                "Connection": "x-drop-me",
                "x-drop-me": "1",
                "x-slo-ttft-ms": "100",
                "Accept-Encoding": "gzip",
            }
            assert (await front.post(CHAT, HELLO, sent)).status == 200
            (seen,) = front.seen(CHAT)
            assert seen.headers["Accept-Encoding"] == "identity"
            names = {name.lower() for name in seen.headers}
            assert seen.headers["Authorization"] == "Bearer the-secret-of-this-run"
            assert not names & {"x-api-key", "x-override-rid", "x-drop-me", "x-slo-ttft-ms"}

    asyncio.run(run())


def test_large_answers_and_bodies_pass(door: Door) -> None:
    async def run() -> None:
        async with door(_stub("a", chunks=3_000_000)) as front:
            reply = await front.post("/generate", {"text": "y" * 2_000_000})
            assert reply.status == 200
            assert len(reply.json()["text"]) == 3_000_000
            (seen,) = front.seen("/generate")
            assert len(seen.body["text"]) == 2_000_000

    asyncio.run(run())


@pytest.mark.parametrize("body", [HELLO, STREAM])
def test_a_death_before_the_first_byte_is_invisible(door: Door, body: dict[str, Any]) -> None:
    async def run() -> None:
        broken = _stub("a", fault=Fault.CLOSE_EARLY)
        async with door(broken, _stub("b"), routing={"policy": "round_robin"}) as front:
            for _ in range(4):
                reply = await front.post(CHAT, body)
                assert reply.status == 200
                assert reply.headers["x-bana-instance"] == "b"
            metrics = (await front.get("/metrics")).body.decode()
            assert 'bana_retries_total{reason="crash"} 4.0' in metrics

    asyncio.run(run())


def test_a_dead_reused_socket_is_no_crash(door: Door) -> None:
    async def run() -> None:
        once = _stub("a", fault=Fault.CLOSE_EARLY, fault_limit=1)
        async with door(once) as front:
            reply = await front.post(CHAT, HELLO)
            assert reply.status == 200
            assert (await front.status())["instances"][0]["failures_total"] == 0

    asyncio.run(run())


def test_two_crashes_are_poison(door: Door) -> None:
    async def run() -> None:
        poison = {"fault": Fault.CLOSE_EARLY, "poison": "venom"}
        async with door(_stub("a", **poison), _stub("b", **poison)) as front:
            bad = {**HELLO, "messages": [{"role": "user", "content": "venom"}]}
            reply = await front.post(CHAT, bad)
            assert (reply.status, reply.code) == (502, "poison_request")
            assert reply.headers["x-should-retry"] == "false"
            assert (await front.post(CHAT, HELLO)).status == 200

    asyncio.run(run())


def test_a_retry_waits_a_moment_for_another_instance(door: Door) -> None:
    async def run() -> None:
        broken, late = _stub("a", fault=Fault.CLOSE_EARLY), _stub("b", is_ready=False)
        async with door(broken, late) as front:
            posting = asyncio.create_task(front.post(CHAT, HELLO))
            await front.wait_until(lambda: len(front.seen(CHAT)) == 2)
            server = front.stubs[1].server
            server.settings = _stub("b", secret=server.settings.secret)
            reply = await posting
            assert (reply.status, reply.headers["x-bana-instance"]) == (200, "b")

    asyncio.run(run())


def test_a_stream_is_not_retried_when_no_slack_is_left(door: Door) -> None:
    async def run() -> None:
        broken = _stub("a", fault=Fault.CLOSE_EARLY)
        async with door(broken, _stub("b"), routing={"policy": "round_robin"}) as front:
            reply = await front.post(CHAT, STREAM, {"x-slo-ttft-ms": "1"})
            assert (reply.status, reply.code) == (503, "instance_lost")
            assert "Retry-After" in reply.headers

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (CHAT, HELLO, 200),
        (CHAT, {**HELLO, "stream": False}, 200),
        ("/generate", {"text": "hi"}, 200),
        ("/api/chat", {**HELLO, "stream": False}, 200),
        # Ollama streams unless told not to.
        ("/api/chat", HELLO, 503),
    ],
)
def test_a_whole_answer_is_retried_as_long_as_it_is_waited_for(
    door: Door, path: str, body: dict[str, Any], status: int
) -> None:
    async def run() -> None:
        broken = _stub("a", fault=Fault.CLOSE_EARLY)
        async with door(broken, _stub("b"), routing={"policy": "round_robin"}) as front:
            reply = await front.post(path, body, {"x-slo-ttft-ms": "1"})
            assert reply.status == status
        limits = {"first_byte_timeout_s": 0.001}
        async with door(
            broken, _stub("b"), routing={"policy": "round_robin"}, limits=limits
        ) as front:
            reply = await front.post(path, body, {"x-slo-ttft-ms": "1"})
            assert reply.status in (503, 504)

    asyncio.run(run())


@pytest.mark.parametrize("fault", [Fault.CLOSE_MIDWAY, Fault.CUT_EVENT])
def test_a_death_in_the_stream_ends_in_a_whole_error_event(door: Door, fault: Fault) -> None:
    async def run() -> None:
        async with door(_stub("a", fault=fault), _stub("b", fault=fault)) as front:
            reply = await front.post(CHAT, STREAM)
            events = reply.body.decode().strip().split("\n\n")
            assert all(json.loads(event.removeprefix("data: ")) for event in events)
            assert _error_event(reply.body)["code"] == "instance_lost"
            assert DONE not in reply.body

    asyncio.run(run())


def test_garbage_in_a_stream_passes_as_it_is(door: Door) -> None:
    async def run() -> None:
        async with door(_stub("a", fault=Fault.GARBAGE, chunks=2)) as front:
            reply = await front.post(CHAT, STREAM)
            assert b"\x00\xff not an event" in reply.body
            assert reply.body.endswith(DONE)

    asyncio.run(run())


def test_silence_is_cut_off(door: Door) -> None:
    async def run() -> None:
        limits = {"first_byte_timeout_s": 0.3, "stall_timeout_s": 0.3}
        async with door(_stub("a", fault=Fault.HANG), limits=limits) as front:
            reply = await front.post(CHAT, HELLO)
            assert (reply.status, reply.code) == (504, "first_byte_timeout")
            await front.wait_until(lambda: reply.headers["x-bana-rid"] in front.aborts())
        async with door(_stub("a", fault=Fault.HANG_MIDWAY), limits=limits) as front:
            reply = await front.post(CHAT, STREAM)
            assert _error_event(reply.body)["code"] == "stall_timeout"

    asyncio.run(run())


def test_flat_errors_become_error_objects(door: Door) -> None:
    async def run() -> None:
        async with door(_stub("a", fault=Fault.FLAT_ERROR)) as front:
            reply = await front.post(CHAT, HELLO)
            assert reply.status == 400
            assert reply.error == {
                "message": "too long",
                "type": "invalid_request_error",
                "code": "invalid_request",
                "param": None,
            }
            anthropic = await front.post("/v1/messages", HELLO)
            assert anthropic.json()["type"] == "error"
            assert anthropic.error["message"] == "too long"

    asyncio.run(run())


@pytest.mark.parametrize("path", [CHAT, "/generate"])
def test_a_refusal_inside_a_stream_has_the_status_that_it_means(door: Door, path: str) -> None:
    async def run() -> None:
        async with door(_stub("a", fault=Fault.REFUSE_IN_STREAM)) as front:
            body = STREAM if path == CHAT else {"text": "hello", "stream": True}
            reply = await front.post(path, body)
            assert (reply.status, reply.code) == (429, "rejected_infeasible")
            assert reply.headers["retry-after-ms"] == "2500"
            assert reply.headers["Retry-After"] == "3"
            assert reply.headers["x-bana-error"] == "rejected_infeasible"
            # The connection to the instance and the next request are none the worse.
            front.stubs[0].server.settings = _stub("a")
            assert (await front.post(CHAT, STREAM)).status == 200
            assert front.aborts() == []

    asyncio.run(run())


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.UNAVAILABLE])
def test_whoever_is_refused_is_told_when_to_come_again(door: Door, fault: Fault) -> None:
    async def run() -> None:
        async with door(_stub("a", fault=fault), limits={"retry_after_s": 7.0}) as front:
            reply = await front.post(CHAT, HELLO)
            assert reply.status == (429 if fault is Fault.REFUSE else 503)
            assert (reply.headers["Retry-After"], reply.headers["retry-after-ms"]) == ("7", "7000")

    asyncio.run(run())


def test_an_instance_that_refuses_our_key_is_our_fault(door: Door) -> None:
    async def run() -> None:
        async with door() as front:
            for stub in front.stubs:
                stub.server.settings = StubSettings(name="x", secret="another")
            reply = await front.post(CHAT, HELLO)
            assert (reply.status, reply.code) == (502, "instance_refused_key")

    asyncio.run(run())


def test_a_kill_under_load_loses_nothing_that_had_not_begun(
    door_process: Door, stub_processes: Any
) -> None:
    async def run() -> None:
        stubs = stub_processes(
            StubSettings(name="a", first_delay_s=0.3), StubSettings(name="b", first_delay_s=0.3)
        )
        async with door_process([(s.name, s.url) for s in stubs]) as front:
            pending = [asyncio.create_task(front.post(CHAT, STREAM)) for _ in range(60)]
            await asyncio.sleep(0.1)
            stubs[0].process.send_signal(signal.SIGKILL)
            replies = await asyncio.gather(*pending)
            assert {r.status for r in replies} == {200}
            assert all(r.body.endswith(DONE) for r in replies)
            assert {r.headers["x-bana-instance"] for r in replies} == {"b"}
            await front.wait_states(a="down", b="up")
            assert (await front.post(CHAT, HELLO)).status == 200

    asyncio.run(run())


def test_a_request_that_kills_two_instances_is_poison(
    door_process: Door, stub_processes: Any
) -> None:
    async def run() -> None:
        deadly = {"fault": Fault.EXIT, "poison": "venom"}
        stubs = stub_processes(_stub("a", **deadly), _stub("b", **deadly))
        async with door_process([(s.name, s.url) for s in stubs]) as front:
            bad = {**HELLO, "messages": [{"role": "user", "content": "venom"}]}
            reply = await front.post(CHAT, bad)
            assert (reply.status, reply.code) == (502, "poison_request")
            assert [s.process.wait(10) for s in stubs] == [-signal.SIGKILL] * 2
            await front.wait_states(a="down", b="down")
            assert (await front.post(CHAT, HELLO)).code == "no_instance"

    asyncio.run(run())


def test_nobody_up_is_a_503(door: Door) -> None:
    async def run() -> None:
        async with door(_stub("a", is_ready=False)) as front:
            reply = await front.post(CHAT, HELLO)
            assert (reply.status, reply.code) == (503, "no_instance")
            assert reply.headers["Retry-After"] == "1"
            assert (await front.get("/readyz")).status == 503
            assert (await front.get("/livez")).status == 200

    asyncio.run(run())


def test_chunks_that_are_no_events_end_in_a_broken_connection(door: Door) -> None:
    async def run() -> None:
        async with door(_stub("a")) as front:
            # The stub calls its streams events; the front door must go by what it is told.
            front.stubs[0].server.settings = StubSettings(
                name="a",
                secret="the-secret-of-this-run",
                fault=Fault.CLOSE_MIDWAY,
                stream_type="application/x-ndjson",
            )
            with pytest.raises(aiohttp.ClientPayloadError):
                await front.post("/api/chat", STREAM)

    asyncio.run(run())
