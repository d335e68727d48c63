"""Requests wait for a place at an instance, and leave it for good reasons only."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from bana.eval.stub import Fault, StubSettings, run_stub
from bana.slo.load import LoadLedger
from sglang_bana.config import LimitsConfig, RoutingConfig, UpstreamSpec
from sglang_bana.router.body import Shape
from sglang_bana.router.call import Call
from sglang_bana.router.dispatch import Dispatcher
from sglang_bana.router.endpoints import find_endpoint
from sglang_bana.router.errors import ApiError
from sglang_bana.router.flights import Flight
from sglang_bana.router.instances import InstanceBoard
from sglang_bana.router.keys import Grant
from sglang_bana.router.losses import Trail
from sglang_bana.router.metrics import RouterMetrics
from sglang_bana.router.places import Places, Seeker
from sglang_bana.router.roles import Roles

CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
SECRET = "the-secret-of-this-run"
RULES = {"suspect_after_s": 1.0}
Door = Callable[..., AbstractAsyncContextManager[Any]]


def _pair(tmp_path: Path, **options: Any) -> list[StubSettings]:
    """Two instances that publish load reports."""
    return [
        StubSettings(name=name, load_endpoint=f"ipc://{tmp_path}/{name}.ipc", **options)
        for name in ("a", "b")
    ]


def _server(front: Any, name: str) -> Any:
    return next(s.server for s in front.stubs if s.server.settings.name == name)


def _asked(front: Any, name: str, path: str = CHAT) -> list[Any]:
    return [r.body for r in _server(front, name).log.requests if r.path == path]


def test_a_late_probe_moves_nothing_while_the_scheduler_reports(door: Door, tmp_path: Path) -> None:
    async def run() -> None:
        pair = _pair(tmp_path, first_delay_s=3.0)
        async with door(*pair, supervisor=RULES, routing={"policy": "round_robin"}) as front:
            posting = asyncio.create_task(front.post(CHAT, HELLO))
            await front.wait_until(lambda: _asked(front, "a"))
            _server(front, "a").is_deaf = True
            _server(front, "b").settings = StubSettings(name="b", secret=SECRET)

            async def is_told() -> bool:
                return bool((await front.status())["instances"][0]["trouble"])

            await front.wait_until(is_told)
            # New work goes where HTTP is on time.
            for _ in range(4):
                assert (await front.post(CHAT, HELLO)).headers["x-bana-instance"] == "b"
            reply = await posting
            assert (reply.status, reply.headers["x-bana-instance"]) == (200, "a")
            assert (await front.status())["instances"][0]["failures_total"] == 0
            _server(front, "a").is_deaf = False

            async def is_used() -> bool:
                return (await front.post(CHAT, HELLO)).headers["x-bana-instance"] == "a"

            await front.wait_until(is_used)

    asyncio.run(run())


def test_an_http_server_that_is_silent_for_long_is_left(door: Door, tmp_path: Path) -> None:
    async def run() -> None:
        pair = _pair(tmp_path)
        rules = {"suspect_after_s": 0.5}
        async with door(*pair, supervisor=rules, routing={"policy": "round_robin"}) as front:
            a = _server(front, "a")
            a.settings = StubSettings(name="a", secret=SECRET, fault=Fault.HANG)
            posting = asyncio.create_task(front.post(CHAT, HELLO))
            await front.wait_until(lambda: _asked(front, "a"))
            a.is_deaf = True
            reply = await posting
            assert (reply.status, reply.headers["x-bana-instance"]) == (200, "b")
            await front.wait_states(a="suspect", b="up")

    asyncio.run(run())


def test_a_request_that_was_moved_once_waits_on_at_a_second_suspect(
    door: Door, tmp_path: Path
) -> None:
    async def run() -> None:
        pair = _pair(tmp_path)
        async with door(*pair, supervisor=RULES, routing={"policy": "round_robin"}) as front:
            a, b = _server(front, "a"), _server(front, "b")
            a.settings = StubSettings(name="a", secret=SECRET, fault=Fault.HANG)
            b.settings = StubSettings(name="b", secret=SECRET, first_delay_s=6.0)
            posting = asyncio.create_task(front.post(CHAT, HELLO))
            await front.wait_until(lambda: _asked(front, "a"))
            a.is_muted = True
            await front.wait_until(lambda: _asked(front, "b"))
            b.is_muted, a.is_muted = True, False
            await front.wait_states(a="up", b="suspect")
            b.is_muted = False
            reply = await posting
            assert (reply.status, reply.headers["x-bana-instance"]) == (200, "b")
            assert [len(_asked(front, name)) for name in ("a", "b")] == [1, 1]

    asyncio.run(run())


def test_nothing_moves_between_two_that_fall_silent_together(door: Door, tmp_path: Path) -> None:
    async def run() -> None:
        pair = _pair(tmp_path, first_delay_s=4.0)
        async with door(*pair, supervisor=RULES, routing={"policy": "round_robin"}) as front:
            posting = [asyncio.create_task(front.post(CHAT, HELLO)) for _ in range(2)]
            await front.wait_until(lambda: _asked(front, "a") and _asked(front, "b"))
            for name in ("a", "b"):
                _server(front, name).is_muted = True
            await front.wait_states(a="suspect", b="suspect")
            replies = await asyncio.gather(*posting)
            assert {r.status for r in replies} == {200}
            assert [len(_asked(front, name)) for name in ("a", "b")] == [1, 1]

    asyncio.run(run())


def test_what_only_a_suspect_can_answer_waits_for_it(door: Door, tmp_path: Path) -> None:
    async def run() -> None:
        pair = _pair(tmp_path)
        async with door(*pair, supervisor=RULES, routing={"policy": "round_robin"}) as front:
            opened = await front.post(
                "/open_session", {"session_id": "s", "capacity_of_str_len": 9}
            )
            assert opened.headers["x-bana-instance"] == "a"
            a = _server(front, "a")
            a.settings = StubSettings(name="a", secret=SECRET, first_delay_s=4.0)
            body = {"text": "hi", "session_params": {"id": "s"}}
            posting = asyncio.create_task(front.post("/generate", body))
            await front.wait_until(lambda: _asked(front, "a", "/generate"))
            a.is_muted = True
            await front.wait_states(a="suspect", b="up")
            reply = await posting
            assert (reply.status, reply.headers["x-bana-instance"]) == (200, "a")

    asyncio.run(run())


def _numbered(number: int) -> dict[str, Any]:
    return {**HELLO, "number": number}


async def _fill(front: Any, count: int, first: int = 0) -> list[asyncio.Task[Any]]:
    """`count` requests that arrive in the order of their numbers."""
    posting = []
    for number in range(first, first + count):
        before = len(front.running.door.flights)
        headers = {"x-request-id": f"n{number}"}
        posting.append(asyncio.create_task(front.post(CHAT, _numbered(number), headers)))
        await front.wait_until(lambda b=before: len(front.running.door.flights) > b)
    return posting


def _numbers(front: Any, name: str = "a") -> list[int]:
    return [body["number"] for body in _asked(front, name)]


def _list_seekers(earlier: Sequence[Seeker] = ()) -> list[Seeker]:
    """Those that are still held somewhere, but for `earlier` ones; cycles are collected first."""
    gc.collect()
    known = set(map(id, earlier))
    # Asking some of torch's objects for more than their type warns.
    held: list[Seeker] = [found for found in gc.get_objects() if type(found) is Seeker]
    return [found for found in held if id(found) not in known]


def test_a_full_instance_gets_the_oldest_once_it_has_room(door: Door) -> None:
    async def run() -> None:
        limits = {"max_unanswered_per_instance": 2}
        # Other tests of this process may still hold theirs.
        earlier = _list_seekers()
        async with door(StubSettings(name="a", fault=Fault.HANG), limits=limits) as front:
            posting = await _fill(front, 6)
            await front.wait_until(lambda: _numbers(front) == [0, 1])
            status = await front.status()
            assert (status["in_flight"], status["waiting"]) == (6, 4)
            text = (await front.get("/metrics")).body.decode()
            assert "bana_waiting 4.0" in text
            posting[1].cancel()
            await front.wait_until(lambda: _numbers(front) == [0, 1, 2])
            # Those that leave while they wait take no place with them.
            posting[3].cancel()
            await front.wait_until(lambda: front.running.door.flights.count_waiting() == 2)
            posting[0].cancel()
            await front.wait_until(lambda: _numbers(front) == [0, 1, 2, 4])
            await front.post("/abort_request", {"rid": "n5"})
            aborted = await posting[5]
            assert (aborted.status, aborted.code) == (400, "aborted")
            for task in posting:
                task.cancel()
            await front.wait_until(lambda: len(front.running.door.flights) == 0)
            await front.wait_until(lambda: not _list_seekers(earlier))
            front.stubs[0].server.settings = StubSettings(name="a", secret=SECRET)
            replies = await asyncio.gather(*(front.post(CHAT, HELLO) for _ in range(20)))
            assert {r.status for r in replies} == {200}

    asyncio.run(run())


def _place(now_s: float) -> tuple[Places, Call, Flight, Flight]:
    """A cluster of one place, and two requests alike."""
    board = InstanceBoard([UpstreamSpec("a", "http://a")], suspect_after_s=5.0)
    board.observe_ready(board.all()[0], now_s)
    dispatcher = Dispatcher(RoutingConfig(), board, LoadLedger(), RouterMetrics(), lambda: None)
    endpoint = find_endpoint("/generate")
    assert endpoint is not None
    call = Call(endpoint, "POST", "/generate", {}, None, None, Shape(), b"")
    limits = LimitsConfig(max_unanswered_per_instance=1, first_byte_timeout_s=10.0)
    first, second = (Flight(name, endpoint, Grant(), now_s, now_s) for name in "ab")
    roles = Roles(board, Path("/no/such/file"))
    return Places(board, roles, dispatcher, limits), call, first, second


def test_who_leaves_in_the_moment_of_getting_a_place_gives_it_back() -> None:
    async def run() -> None:
        places, call, first, second = _place(time.monotonic())
        async with asyncio.timeout(8):
            instance = await places.take(first, call, Trail())
            waiting = asyncio.create_task(places.take(second, call, Trail()))
            await asyncio.sleep(0.05)
            assert second.is_waiting
            places.free(first)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await places.take(second, call, Trail()) is instance

    asyncio.run(run())


def test_those_that_wait_are_told_when_the_front_door_closes(door: Door) -> None:
    async def run() -> None:
        limits = {"max_unanswered_per_instance": 1, "drain_timeout_s": 0.2}
        async with door(StubSettings(name="a", fault=Fault.HANG), limits=limits) as front:
            posting = await _fill(front, 3)
            await front.wait_until(lambda: _numbers(front) == [0])
            await front.running.door.drain()
            assert {(await task).code for task in posting} == {"draining"}

    asyncio.run(run())


def test_nobody_waits_for_a_place_longer_than_for_an_answer() -> None:
    async def run() -> None:
        places, call, first, second = _place(time.monotonic())
        second.arrival_s -= 9.9
        async with asyncio.timeout(8):
            await places.take(first, call, Trail())
            with pytest.raises(ApiError) as refused:
                await places.take(second, call, Trail())
        assert (refused.value.status, refused.value.code) == (504, "first_byte_timeout")
        assert not second.is_waiting

    asyncio.run(run())


def test_a_place_given_back_twice_is_one_place() -> None:
    async def run() -> None:
        places, call, first, second = _place(time.monotonic())
        third = Flight("c", first.endpoint, Grant(), first.arrival_s, first.arrival_s)
        async with asyncio.timeout(8):
            await places.take(first, call, Trail())
            places.free(first)
            places.free(first)
            await places.take(second, call, Trail())
            waiting = asyncio.create_task(places.take(third, call, Trail()))
            await asyncio.sleep(0.05)
            assert third.is_waiting
            places.free(second)
            await waiting

    asyncio.run(run())


def test_a_stream_that_has_begun_holds_no_place(door: Door) -> None:
    async def run() -> None:
        limits = {"max_unanswered_per_instance": 1}
        long = StubSettings(name="a", chunks=3, chunk_interval_s=3600.0)
        async with door(long, limits=limits) as front:
            body = {**HELLO, "stream": True}
            streams = [asyncio.create_task(front.post(CHAT, body)) for _ in range(2)]
            await front.wait_until(lambda: len(front.seen(CHAT)) == 2)
            for stream in streams:
                stream.cancel()

    asyncio.run(run())


def test_moved_requests_keep_the_bound_and_their_turn(door: Door, tmp_path: Path) -> None:
    async def run() -> None:
        pair = _pair(tmp_path, fault=Fault.HANG)
        limits = {"max_unanswered_per_instance": 2}
        config = {"supervisor": RULES, "routing": {"policy": "round_robin"}, "limits": limits}
        async with door(*pair, **config) as front:
            posting = await _fill(front, 6)
            await front.wait_until(lambda: _numbers(front, "b") == [1, 3])
            _server(front, "a").is_muted = True
            await front.wait_states(a="suspect", b="up")
            await front.wait_until(lambda: front.running.door.flights.count_waiting() == 4)
            assert _numbers(front, "b") == [1, 3]
            posting[1].cancel()
            await front.wait_until(lambda: _numbers(front, "b") == [1, 3, 0])
            # The one that is back has two places.
            _server(front, "a").is_muted = False
            await front.wait_until(lambda: _numbers(front) == [0, 2, 2, 4])
            for task in posting:
                task.cancel()

    asyncio.run(run())


def test_those_that_wait_are_refused_once_nobody_lives(
    door_process: Door, stub_processes: Any
) -> None:
    async def run() -> None:
        (stub,) = stub_processes(StubSettings(name="a", fault=Fault.HANG))
        limits = {"max_unanswered_per_instance": 1}
        async with door_process([("a", stub.url)], limits=limits) as front:
            posting = [asyncio.create_task(front.post(CHAT, HELLO)) for _ in range(3)]

            async def is_full() -> bool:
                return bool((await front.status())["waiting"] == 2)

            await front.wait_until(is_full)
            os.kill(stub.process.pid, signal.SIGKILL)
            assert {(await task).code for task in posting} == {"no_instance"}

    asyncio.run(run())


def test_requests_wait_for_the_first_answers_after_a_start(door_before: Door) -> None:
    async def run() -> None:
        async with run_stub(StubSettings(name="a", secret=SECRET)) as stub:
            stub.server.is_deaf = True
            early = {"states": {"a": "starting"}, "limits": {"start_wait_s": 30.0}}
            async with door_before([("a", stub.url)], **early) as front:
                posting = asyncio.create_task(front.post(CHAT, HELLO))
                await front.wait_until(lambda: len(front.running.door.flights) == 1)
                stub.server.is_deaf = False
                assert (await posting).status == 200

    asyncio.run(run())


@pytest.mark.parametrize(("is_deaf", "start_wait_s"), [(True, 0.2), (False, 86_400.0)])
def test_nobody_waits_long_for_what_is_known_or_never_told(
    door_before: Door, is_deaf: bool, start_wait_s: float
) -> None:
    async def run() -> None:
        async with run_stub(StubSettings(name="a", secret=SECRET, is_ready=False)) as stub:
            stub.server.is_deaf = is_deaf
            early = {"states": {"a": "starting"}, "limits": {"start_wait_s": start_wait_s}}
            async with door_before([("a", stub.url)], **early) as front, asyncio.timeout(20):
                assert (await front.post(CHAT, HELLO)).code == "no_instance"

    asyncio.run(run())
