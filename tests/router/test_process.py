"""The front door as a process: draining, signals, third-party policies, refusals at start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from bana.eval.stub import Fault, StubSettings, run_stub
from sglang_bana.config import BanaConfig, FrontDoorSpec, RoutingConfig, UpstreamSpec

CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
STREAM = {**HELLO, "stream": True}
CONTROL = {"Authorization": "Bearer the-control-key"}
Door = Callable[..., AbstractAsyncContextManager[Any]]


def _stub(**options: Any) -> Any:
    return run_stub(StubSettings(name="a", secret="the-secret-of-this-run", **options))


async def _ended(front: Any) -> int:
    await front.wait_until(lambda: front.process.poll() is not None)
    return int(front.process.returncode)


def test_draining_finishes_what_runs_and_takes_nothing_new(door_process: Door) -> None:
    async def run() -> None:
        async with (
            _stub(chunks=20, chunk_interval_s=0.1) as stub,
            door_process([("a", stub.url)]) as front,
        ):
            running = asyncio.create_task(front.post(CHAT, STREAM))
            await front.wait_until(lambda: stub.server.log.generating == 1)
            front.process.send_signal(signal.SIGTERM)

            async def is_draining() -> bool:
                return bool((await front.get("/readyz")).status == 503)

            await front.wait_until(is_draining)
            refused = await front.post(CHAT, HELLO)
            assert (refused.status, refused.code) == (503, "draining")
            assert refused.headers["Connection"] == "close"
            assert "Retry-After" in refused.headers
            assert (await front.get("/livez")).status == 200
            reply = await running
            assert reply.status == 200
            assert reply.body.endswith(b"data: [DONE]\n\n")
            assert await _ended(front) == 0

    asyncio.run(run())


def test_what_outlives_the_drain_time_ends_with_a_clear_error(door_process: Door) -> None:
    async def run() -> None:
        async with (
            _stub(fault=Fault.HANG_MIDWAY) as stub,
            door_process([("a", stub.url)], limits={"drain_timeout_s": 0.5}) as front,
        ):
            running = asyncio.create_task(front.post(CHAT, STREAM))
            await front.wait_until(lambda: stub.server.log.generating == 1)
            await asyncio.sleep(0.2)
            front.process.send_signal(signal.SIGTERM)
            reply = await running
            last = reply.body.decode().strip().split("\n\n")[-1]
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "draining"
            assert await _ended(front) == 0

    asyncio.run(run())


def test_a_second_signal_exits_at_once(door_process: Door) -> None:
    async def run() -> None:
        async with _stub(fault=Fault.HANG) as stub, door_process([("a", stub.url)]) as front:
            running = asyncio.create_task(front.post(CHAT, HELLO))
            await front.wait_until(lambda: stub.server.log.generating == 1)
            front.process.send_signal(signal.SIGTERM)
            await front.wait_until(lambda: "draining" in _log(front))
            front.process.send_signal(signal.SIGTERM)
            assert await _ended(front) == 130
            with pytest.raises(aiohttp.ClientError):
                await running

    asyncio.run(run())


def _log(front: Any) -> str:
    return str(Path(front.log).read_text())


def test_draining_on_request_ends_on_request(door_process: Door) -> None:
    async def run() -> None:
        async with _stub() as stub, door_process([("a", stub.url)]) as front:
            assert (await front.post("/bana/drain")).status == 401
            assert (await front.post("/bana/drain", None, CONTROL)).json()["is_draining"]
            assert (await front.post(CHAT, HELLO)).code == "draining"
            async with front.client.delete(front.url + "/bana/drain", headers=CONTROL) as reply:
                assert reply.status == 200
            assert (await front.post(CHAT, HELLO)).status == 200

    asyncio.run(run())


def test_it_dies_with_its_parent_and_leaves_the_socket_to_the_next(
    door_process: Door,
) -> None:
    async def run() -> None:
        async with _stub() as stub, door_process([("a", stub.url)]) as front:
            await front.post(CHAT, HELLO)
            os.kill(front.process.pid, signal.SIGKILL)
            front.process.wait()
            # The listening socket lives in the parent: connections wait for the next front door.
            waiting = asyncio.create_task(front.post(CHAT, HELLO))
            await front.restart()
            assert (await waiting).status == 200

    asyncio.run(run())


POLICY = """
import dataclasses
from bana.slo.registry import PolicyEntry
from bana.slo.routing import RoutingDecision

@dataclasses.dataclass(frozen=True)
class Options:
    place: int = 0

class Last:
    needs_prefix = False
    def __init__(self, options):
        self._place = options.place
    def decide_instance(self, view, now_s, rng):
        if view.prompt_tokens > 1000:
            raise RuntimeError("too long for me")
        return RoutingDecision(view.instances[self._place].name, "my_reason")

entry = PolicyEntry(Last, Options)
"""


def _install(folder: Path) -> dict[str, str]:
    """A distribution with one entry point, as pip would leave it in site-packages."""
    info = folder / "third_party_routing-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: third-party-routing\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text("[bana.routing]\nlast = third_party_routing:entry\n")
    (folder / "third_party_routing.py").write_text(POLICY)
    paths = (str(folder), os.environ.get("PYTHONPATH", ""))
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def test_a_third_partys_policy_serves(door_process: Door, tmp_path: Path) -> None:
    async def run() -> None:
        environment = _install(tmp_path / "site")
        routing = {"policy": "last", "options": {"place": -1}}
        async with _stub() as a, _stub() as b:
            pairs = [("a", a.url), ("b", b.url)]
            async with door_process(pairs, environment=environment, routing=routing) as front:
                for _ in range(3):
                    reply = await front.post(CHAT, HELLO)
                    assert reply.headers["x-bana-instance"] == "b"
                text = (await front.get("/metrics")).body.decode()
                assert 'bana_dispatch_total{instance="b",reason="my_reason"} 3.0' in text
                assert (await front.status())["routing_policy"] == "last"
                # Its fault costs nobody an answer, is counted and stays visible.
                long = await front.post("/generate", {"text": "y" * 8000})
                assert long.status == 200
                text = (await front.get("/metrics")).body.decode()
                assert 'bana_policy_faults_total{policy="last"} 1.0' in text
                assert "too long for me" in (await front.status())["warnings"][0]

    asyncio.run(run())


def _start(spec: FrontDoorSpec, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "spec.json"
    path.write_bytes(msgspec.json.encode(spec))
    return subprocess.run(
        [sys.executable, "-m", "sglang_bana.router.main", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_unknown_policy_is_refused_with_the_known_names(tmp_path: Path) -> None:
    config = BanaConfig(routing=RoutingConfig(policy="least_lod"))
    spec = FrontDoorSpec(
        config, (UpstreamSpec("a", "http://127.0.0.1:1"),), 0, str(tmp_path), os.getpid(), "c"
    )
    ended = _start(spec, tmp_path)
    assert ended.returncode == 2
    assert "did you mean 'least_load'?" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_unreadable_spec_is_one_line(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "sglang_bana.router.main", str(tmp_path / "none.json")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("bana: cannot read the front door's spec")
    assert ended.stderr.count("\n") == 1


def test_a_front_door_without_its_launcher_ends(tmp_path: Path) -> None:
    spec = FrontDoorSpec(
        BanaConfig(), (UpstreamSpec("a", "http://127.0.0.1:1"),), 0, str(tmp_path), 1, "c"
    )
    started_s = time.monotonic()
    assert _start(spec, tmp_path).returncode != 0
    assert time.monotonic() - started_s < 60
