"""Servers in threads of their own, since a run has its own event loop, and small workloads."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

import msgspec
import pytest

from bana.eval.client.plan import ClientPlan, Endpoint, Timeouts
from bana.eval.client.target import Target
from bana.eval.requests import Offered, Prompt, Workload
from bana.eval.stub import StubServer, StubSettings, run_stub

PATIENCE_S = 30.0
QUICK_TIMEOUTS = Timeouts(connect_s=5, first_token_s=20, stall_s=20, total_s=20, drain_s=20)


@dataclasses.dataclass
class Hosted:
    """A server that runs in a thread; `value` is what its context gave."""

    loop: asyncio.AbstractEventLoop
    stop: asyncio.Event
    value: Any

    def stall(self, seconds: float) -> None:
        """Nothing at all happens in the server for so long."""
        self.loop.call_soon_threadsafe(time.sleep, seconds)


@contextlib.contextmanager
def in_thread(serving: Callable[[], AbstractAsyncContextManager[Any]]) -> Iterator[Hosted]:
    """Enter `serving` in the event loop of a thread for the length of the block."""
    ready: queue.Queue[Hosted] = queue.Queue()

    async def host() -> None:
        stop = asyncio.Event()
        async with serving() as value:
            ready.put(Hosted(asyncio.get_running_loop(), stop, value))
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(host()))
    thread.start()
    hosted = ready.get(timeout=PATIENCE_S)
    try:
        yield hosted
    finally:
        hosted.loop.call_soon_threadsafe(hosted.stop.set)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@dataclasses.dataclass
class StubThread:
    """A stub with its URL."""

    hosted: Hosted

    @property
    def url(self) -> str:
        return str(self.hosted.value.url)

    @property
    def server(self) -> StubServer:
        server: StubServer = self.hosted.value.server
        return server

    def seen(self, path: str) -> list[Any]:
        """What it was asked under `path`."""
        return [r for r in self.server.log.requests if r.path == path]


@pytest.fixture
def stub() -> Callable[..., AbstractContextManager[StubThread]]:
    """A function: stub settings in, a context with a running stub out."""

    @contextlib.contextmanager
    def start(**settings: Any) -> Iterator[StubThread]:
        given = StubSettings(**{"is_length_honoured": True, **settings})
        with in_thread(lambda: run_stub(given)) as hosted:
            yield StubThread(hosted)

    return start


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


@pytest.fixture
def raw_server() -> Callable[..., AbstractContextManager[str]]:
    """A function: a connection callback (and a host) in, a context with the server's URL out."""

    @contextlib.contextmanager
    def start(answer: Answer, host: str = "127.0.0.1", **options: Any) -> Iterator[str]:
        @contextlib.asynccontextmanager
        async def serving() -> AsyncIterator[int]:
            server = await asyncio.start_server(answer, host, 0, **options)
            try:
                yield server.sockets[0].getsockname()[1]
            finally:
                server.close()

        with in_thread(serving) as hosted:
            shown = f"[{host}]" if ":" in host else host
            scheme = "https" if "ssl" in options else "http"
            yield f"{scheme}://{shown}:{hosted.value}"

    return start


@pytest.fixture
def make_plan() -> Callable[..., ClientPlan]:
    """A function: a URL and changes in, a plan without probes or samples out."""

    def make(url: str, **changes: Any) -> ClientPlan:
        plan = ClientPlan(
            target=Target(url),
            model="m",
            timeouts=QUICK_TIMEOUTS,
            # These tests run beside anything; whoever tests lateness sets a limit.
            lateness_limit_s=60.0,
            spare_connections=2,
            probe_rps=None,
            sample_interval_s=None,
        )
        return msgspec.structs.replace(plan, **changes)

    return make


@pytest.fixture
def make_workload() -> Callable[..., Workload]:
    """A function: how many requests, how far apart, and what they are like."""

    def make(count: int, gap_s: float = 0.01, **fields: Any) -> Workload:
        requests = tuple(
            Offered(
                index=index,
                due_s=index * gap_s,
                **{
                    "prompt": Prompt(token_ids=[10 + index, 11, 12]),
                    "prompt_tokens": 3,
                    "output_tokens": 4,
                    **fields,
                },
            )
            for index in range(count)
        )
        return Workload(requests, max(count * gap_s, 0.1), 0, "", {})

    return make


@pytest.fixture(params=list(Endpoint))
def endpoint(request: pytest.FixtureRequest) -> Endpoint:
    """Each endpoint in turn."""
    found: Endpoint = request.param
    return found


@pytest.fixture
def prompt_of() -> Callable[[Endpoint], Prompt]:
    """A function: a prompt that the endpoint takes."""

    def choose(endpoint: Endpoint) -> Prompt:
        return Prompt(text="hi") if endpoint is Endpoint.CHAT else Prompt(token_ids=[1, 2])

    return choose
