"""Parts of a cluster under load are killed, stopped or poisoned, and its clients leave."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from http.client import HTTPResponse, IncompleteRead
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import aiohttp
import msgspec
import psutil
import pytest

pytestmark = [pytest.mark.engine, pytest.mark.chaos, pytest.mark.timeout(900)]

DEADLINE_S = 180.0
# A new front door imports its modules and asks the instances once: a few seconds.
BACK_S = 15.0
STREAM_END_S = 5.0


@pytest.fixture(scope="module")
def cluster(start_cluster, llama_fixture: Path) -> Iterator:
    flags = ("--model", str(llama_fixture), "--instances", "2")
    quick = ("--set", "supervisor.suspect_after_s=3", "--set", "supervisor.kill_after_s=60")
    with start_cluster(*flags, *quick) as running:
        yield running


def instances(cluster) -> dict[str, dict[str, Any]]:
    return {i["name"]: i for i in cluster.front_door().get("instances", ())}


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not is_true():
        assert time.monotonic() < end_s, f"never came true: {what}"
        time.sleep(0.3)


def wait_all_up(cluster) -> None:
    wait_until(lambda: {i["state"] for i in instances(cluster).values()} == {"up"}, "all up")


def generate_body(rng: random.Random, new_tokens: int) -> dict[str, Any]:
    return {
        "input_ids": [rng.randrange(3, 400) for _ in range(24)],
        "sampling_params": {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True},
    }


async def generate(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> int:
    async with session.post(f"{url}/generate", json=body) as response:
        await response.read()
        return response.status


class Crash(msgspec.Struct):
    """What clients saw when one of two working instances was killed in the middle of a stream."""

    victim: str
    pid: int
    statuses: list[int]
    stream: str


async def kill_under_load(cluster) -> Crash:
    timeout = aiohttp.ClientTimeout(DEADLINE_S)
    streamed = generate_body(random.Random(2), 4000) | {"stream": True}
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(f"{cluster.url}/generate", json=streamed) as stream,
    ):
        victim = stream.headers["x-bana-instance"]
        pid = cluster.pid_of(victim)
        text = (await stream.content.readany()).decode()
        rng = random.Random(1)
        bodies = [generate_body(rng, 48) for _ in range(48)]
        whole = [asyncio.create_task(generate(session, cluster.url, body)) for body in bodies]
        await asyncio.sleep(1.0)
        os.kill(pid, signal.SIGKILL)
        text += (await stream.content.read()).decode()
        return Crash(victim, pid, await asyncio.gather(*whole), text)


@pytest.fixture(scope="module")
def crash(cluster) -> Crash:
    wait_all_up(cluster)
    return asyncio.run(asyncio.wait_for(kill_under_load(cluster), DEADLINE_S))


def test_killed_instance_loses_nothing_that_had_not_begun(crash: Crash) -> None:
    assert crash.statuses == [200] * 48


def test_stream_of_a_killed_instance_ends_with_a_clear_error(crash: Crash) -> None:
    assert '"error"' in crash.stream.rstrip().splitlines()[-1]
    assert "[DONE]" not in crash.stream


def test_killed_instance_is_started_again_and_gets_work(cluster, crash: Crash) -> None:
    wait_until(lambda: cluster.pid_of(crash.victim) not in (crash.pid, None), "a new process")
    wait_all_up(cluster)
    before = instances(cluster)[crash.victim]["dispatched_total"]
    for turn in range(4):
        cluster.greedy_ids([50 + turn, 60, 70], 2)
    assert instances(cluster)[crash.victim]["dispatched_total"] > before


def test_stopped_instance_gets_no_work_and_returns(cluster) -> None:
    wait_all_up(cluster)
    group = os.getpgid(cluster.pid_of("instance-1"))
    os.killpg(group, signal.SIGSTOP)
    try:

        async def load() -> list[int]:
            rng = random.Random(3)
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(DEADLINE_S)) as session:
                work = [generate(session, cluster.url, generate_body(rng, 4)) for _ in range(12)]
                return await asyncio.gather(*work)

        assert set(asyncio.run(load())) == {200}
        assert instances(cluster)["instance-1"]["state"] == "suspect"
    finally:
        os.killpg(group, signal.SIGCONT)
    wait_all_up(cluster)


def test_a_thousand_clients_that_leave_at_random_leave_nothing_behind(cluster) -> None:
    wait_all_up(cluster)

    async def leave_early(session: aiohttp.ClientSession, rng: random.Random) -> None:
        body = generate_body(rng, 200) | {"stream": rng.random() < 0.5}
        try:
            async with asyncio.timeout(rng.random() * 2):
                await generate(session, cluster.url, body)
        except (TimeoutError, aiohttp.ClientError):
            return

    async def crowd() -> None:
        rng = random.Random(4)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            for _ in range(10):
                await asyncio.gather(*(leave_early(session, rng) for _ in range(100)))

    asyncio.run(crowd())

    def is_empty() -> bool:
        status = cluster.front_door()
        engines = [
            i["engine_running_requests"] + i["engine_waiting_requests"]
            for i in status.get("instances", ())
        ]
        return status.get("in_flight") == 0 and sum(engines) == 0

    wait_until(is_empty, "front door and engines empty")
    assert len(cluster.greedy_ids([5, 6, 7], 3)) == 3


def kill_scheduler(pid: int) -> None:
    """Kill what a poisonous request kills: the instance's worker, and with it the instance."""
    for child in psutil.Process(pid).children(recursive=True):
        if "sglang::scheduler" in " ".join(child.cmdline()):
            child.kill()


def test_request_present_at_two_crashes_is_refused_as_poison(cluster) -> None:
    wait_all_up(cluster)

    async def run() -> tuple[int, dict[str, Any], str | None]:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(DEADLINE_S)) as session:
            body = generate_body(random.Random(5), 4000)
            poison = asyncio.create_task(session.post(f"{cluster.url}/generate", json=body))
            killed: set[str] = set()
            while len(killed) < 2 and not poison.done():
                await asyncio.sleep(0.3)
                busy = await asyncio.to_thread(instances, cluster)
                names = {n for n, i in busy.items() if i["in_flight"] > 0} - killed
                for name in names:
                    kill_scheduler(cluster.pid_of(name))
                    killed.add(name)
            async with await poison as response:
                answer = await response.json()
                return response.status, answer, response.headers.get("x-should-retry")

    status, answer, should_retry = asyncio.run(run())
    assert status == 502
    assert answer["error"]["code"] == "poison_request"
    assert should_retry == "false"


def answers_again(cluster) -> bool:
    try:
        return len(cluster.greedy_ids([9, 8, 7], 2)) == 2
    except (URLError, ConnectionError, TimeoutError):
        return False


def open_stream(cluster) -> HTTPResponse:
    """A stream that lasts for minutes, once its first event has come."""
    sampling = {"max_new_tokens": 4000, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": [9, 8, 7], "sampling_params": sampling, "stream": True}
    headers = {"Content-Type": "application/json"}
    request = Request(f"{cluster.url}/generate", json.dumps(body).encode(), headers)
    stream = urlopen(request, timeout=BACK_S)
    assert stream.readline().startswith(b"data: ")
    return stream


def read_to_end(stream: HTTPResponse) -> bytes:
    """What still comes; TimeoutError where neither bytes nor an end do."""
    with stream:
        try:
            return stream.read()
        except IncompleteRead as cut:
            return cut.partial
        except ConnectionError:
            return b""


def test_killed_front_door_comes_back_and_instances_keep_their_state(cluster) -> None:
    wait_all_up(cluster)
    names = ("instance-0", "instance-1")
    pids, door = [cluster.pid_of(name) for name in names], cluster.pid_of("front-door")
    stream = open_stream(cluster)
    os.kill(door, signal.SIGKILL)
    killed_s = time.monotonic()
    # The client of the stream is not left hanging: its connection is cut.
    assert b"[DONE]" not in read_to_end(stream)
    assert time.monotonic() - killed_s < STREAM_END_S
    while not answers_again(cluster):
        assert time.monotonic() - killed_s < BACK_S, cluster.log_tail()
        time.sleep(0.2)
    assert time.monotonic() - killed_s < BACK_S
    assert [cluster.pid_of(name) for name in names] == pids
    assert cluster.pid_of("front-door") != door
