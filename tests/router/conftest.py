"""A front door on stub instances: inside the test's event loop, or as its own process."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from bana.eval.stub import RunningStub, StubSettings, run_stub
from bana.slo.roles import Role
from sglang_bana.config import ROLES_NAME, BanaConfig, FrontDoorSpec, UpstreamSpec, write_private
from sglang_bana.router.serving import RunningDoor, run_door
from sglang_bana.status import RoleTable

from .fake_store import run_store

SECRET = "the-secret-of-this-run"
CONTROL = "the-control-key"
PATIENCE_S = 30.0
CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@dataclasses.dataclass
class Harness:
    """A running front door, its stubs, and a client session on it."""

    url: str
    client: aiohttp.ClientSession
    stubs: Sequence[RunningStub]
    running: RunningDoor | None = None
    process: subprocess.Popen[bytes] | None = None
    log: Path = Path()
    start: Callable[[], subprocess.Popen[bytes]] | None = None

    async def restart(self) -> None:
        """Start the process, anew if it had ended, and wait until it is ready."""
        assert self.start is not None
        self.process = self.start()
        await self.wait_until(lambda: _is_ready(self))

    async def post(
        self, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        own = {"Content-Type": "application/json", **(headers or {})}
        async with self.client.post(self.url + path, data=data, headers=own) as response:
            return Reply(response.status, response.headers, await response.read())

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        async with self.client.get(self.url + path, headers=headers) as response:
            return Reply(response.status, response.headers, await response.read())

    async def status(self) -> Any:
        return (await self.get("/bana/status", {"Authorization": f"Bearer {CONTROL}"})).json()

    async def states(self) -> dict[str, str]:
        return {i["name"]: i["state"] for i in (await self.status())["instances"]}

    async def wait_until(self, check: Callable[[], Any]) -> None:
        """Until `check`, which may be a coroutine function, is true; fails after a while."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            found = check()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return
            assert time.monotonic() < deadline_s, "it did not happen in time"
            await asyncio.sleep(0.02)

    async def wait_states(self, **wanted: str) -> None:
        async def is_reached() -> bool:
            return await self.states() == wanted

        await self.wait_until(is_reached)

    def seen(self, path: str) -> list[Any]:
        """What the stubs were asked under `path`."""
        return [r for s in self.stubs for r in s.server.log.requests if r.path == path]

    def asked(self, name: str, path: str) -> list[Any]:
        """What the stub of this name was asked under `path`."""
        server = next(s.server for s in self.stubs if s.server.settings.name == name)
        return [r for r in server.log.requests if r.path == path]

    async def change_roles(self, **roles: str) -> Reply:
        admin = {"Authorization": f"Bearer {CONTROL}"}
        return await self.post("/bana/roles", {"roles": roles}, admin)

    def aborts(self) -> list[str]:
        return [rid for stub in self.stubs for rid in stub.server.log.aborts]


@dataclasses.dataclass
class Reply:
    """One complete answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json()["error"]

    @property
    def code(self) -> str:
        return str(self.error["code"])


def listen() -> socket.socket:
    listener = socket.socket()
    # Small, so that a client that takes nothing is felt at once; accepted sockets inherit it.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32_768)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1024)
    return listener


def make_spec(
    stubs: Sequence[tuple[str, str]], config: BanaConfig, fd: int, run_dir: Path, **upstream: Any
) -> FrontDoorSpec:
    own = {"secret": SECRET, **upstream}
    specs = tuple(UpstreamSpec(name, url, **own) for name, url in stubs)
    return FrontDoorSpec(config, specs, fd, str(run_dir), os.getpid(), CONTROL)


def parse_config(tables: Mapping[str, object]) -> BanaConfig:
    return msgspec.convert(tables, BanaConfig)


@contextlib.asynccontextmanager
async def open_client() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as client:
        yield client


@contextlib.asynccontextmanager
async def open_door(
    tmp_path: Path,
    *settings: StubSettings,
    upstream: Mapping[str, Any] | None = None,
    store: str = "",
    **tables: object,
) -> AsyncIterator[Harness]:
    """A front door in this event loop, once all its ready stubs are up.

    `store` is where a store's daemon is said to listen.
    """
    async with contextlib.AsyncExitStack() as stack:
        wanted = settings or (StubSettings(name="a"), StubSettings(name="b"))
        named = [msgspec.structs.replace(s, secret=SECRET) for s in wanted]
        stubs = [await stack.enter_async_context(run_stub(s)) for s in named]
        listener = listen()
        pairs = [(s.server.settings.name, s.url) for s in stubs]
        config = parse_config(tables)
        extra = dict(upstream or {})
        if named[0].load_endpoint:
            specs = tuple(
                UpstreamSpec(s.name, stub.url, load_endpoint=s.load_endpoint, secret=SECRET)
                for s, stub in zip(named, stubs, strict=True)
            )
            spec = FrontDoorSpec(config, specs, 0, str(tmp_path), os.getpid(), CONTROL)
        else:
            spec = make_spec(pairs, config, 0, tmp_path, **extra)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        spec = msgspec.structs.replace(spec, listen_fd=listener.detach(), store_endpoint=store)
        running = await stack.enter_async_context(run_door(spec))
        client = await stack.enter_async_context(open_client())
        harness = Harness(url, client, stubs, running=running)
        states = {s.name: "up" if s.is_ready else "starting" for s in named}
        await harness.wait_states(**states)
        yield harness


@contextlib.asynccontextmanager
async def open_door_before(
    tmp_path: Path,
    pairs: Sequence[tuple[str, str]],
    upstream: Mapping[str, Any] | None = None,
    states: Mapping[str, str] | None = None,
    **tables: object,
) -> AsyncIterator[Harness]:
    """A front door in this event loop before servers that run already, once all are up.

    `states` says what to wait for instead.
    """
    listener = listen()
    own = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = parse_config(tables)
    spec = make_spec(pairs, config, listener.detach(), tmp_path, **(upstream or {}))
    async with run_door(spec) as running, open_client() as client:
        harness = Harness(own, client, (), running=running)
        await harness.wait_states(**(states or {name: "up" for name, _ in pairs}))
        yield harness


@contextlib.asynccontextmanager
async def open_roles(
    tmp_path: Path, roles: Mapping[str, str], **tables: Any
) -> AsyncIterator[Harness]:
    """A front door on stubs with these roles, by name, and a store that lives.

    Tables named `on_NAME` are settings of that stub, which keeps pages of the namespace "shared"
    there; prompts of four tokens are handed off. With `store="silent"` nobody answers where the
    store should be.
    """
    is_silent = tables.pop("store", "") == "silent"
    stubs = [
        StubSettings(
            name=name,
            load_endpoint=f"ipc://{tmp_path}/{name}.load",
            **{"namespace": "shared", **tables.pop(f"on_{name}", {})},
        )
        for name in roles
    ]
    linked = {stub.name for stub in stubs if stub.namespace and stub.is_ready}
    store = f"ipc://{tmp_path}/store.sock"
    write_private(tmp_path / ROLES_NAME, RoleTable({n: Role(r) for n, r in roles.items()}))
    tables = {"handoff": {"min_prompt_tokens": 4}, **tables}
    daemon = contextlib.nullcontext() if is_silent else run_store(store)
    async with daemon, open_door(tmp_path, *stubs, store=store, **tables) as front:

        async def is_heard() -> bool:
            told = await front.status()
            is_linked = all(i["link"] for i in told["instances"] if i["name"] in linked)
            return is_silent or (told["store"] is not None and is_linked)

        await front.wait_until(is_heard)
        yield front


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def serve(**handlers: Handler) -> AsyncIterator[str]:
    """The URL of a server in this event loop: `flush_cache=…` answers `/flush_cache`.

    Whatever else it is asked it answers with an empty object.
    """

    async def answer(request: web.Request) -> web.StreamResponse:
        handler = handlers.get(request.path.strip("/").replace("/", "_"))
        return web.json_response({}) if handler is None else await handler(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def start_door(
    tmp_path: Path,
    pairs: Sequence[tuple[str, str]],
    environment: Mapping[str, str] | None = None,
    **tables: object,
) -> AsyncIterator[Harness]:
    """A front door as its own process on the servers in `pairs`."""
    with listen() as listener:
        path = tmp_path / "front_door.json"
        config = parse_config(tables)
        write_private(path, make_spec(pairs, config, listener.fileno(), tmp_path))
        async with open_client() as client:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            harness = Harness(url, client, (), log=tmp_path / "front_door.log")
            command = [sys.executable, "-m", "sglang_bana.router.main", str(path)]
            own = {**os.environ, **(environment or {})}
            harness.start = lambda: _spawn(command, listener.fileno(), harness.log, own)
            try:
                await harness.restart()
                yield harness
            finally:
                assert harness.process is not None
                harness.process.kill()
                harness.process.wait()


def _spawn(
    command: list[str], fd: int, log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    with open(log, "ab") as file:
        return subprocess.Popen(command, pass_fds=[fd], stderr=file, env=environment)


async def _is_ready(harness: Harness) -> bool:
    assert harness.process is not None
    assert harness.process.poll() is None, "the front door ended"
    try:
        return (await harness.get("/readyz")).status == 200
    except aiohttp.ClientError:
        return False


@pytest.fixture
def door(tmp_path: Path) -> Callable[..., contextlib.AbstractAsyncContextManager[Harness]]:
    """`door(*stub settings, **config tables)`: see `open_door`."""
    return lambda *settings, **tables: open_door(tmp_path, *settings, **tables)


@pytest.fixture
def door_with_roles(
    tmp_path: Path,
) -> Callable[..., contextlib.AbstractAsyncContextManager[Harness]]:
    """`door_with_roles({name: role}, **config tables)`: see `open_roles`."""
    return lambda roles, **tables: open_roles(tmp_path, roles, **tables)


@pytest.fixture
def door_on(tmp_path: Path) -> Callable[..., contextlib.AbstractAsyncContextManager[Harness]]:
    """`door_on(url)`: a front door before one attached server, called far."""
    return lambda url: open_door_before(tmp_path, [("far", url)], {"local": False})


@pytest.fixture
def door_before(
    tmp_path: Path,
) -> Callable[..., contextlib.AbstractAsyncContextManager[Harness]]:
    """`door_before(pairs, **config tables)`: see `open_door_before`."""
    return lambda pairs, **options: open_door_before(tmp_path, pairs, **options)


@pytest.fixture
def serving() -> Callable[..., contextlib.AbstractAsyncContextManager[str]]:
    """`serving(flush_cache=handler)`: see `serve`."""
    return serve


@pytest.fixture
def door_process(
    tmp_path: Path,
) -> Callable[..., contextlib.AbstractAsyncContextManager[Harness]]:
    """`door_process(pairs, **config tables)`: see `start_door`."""
    return lambda pairs, **tables: start_door(tmp_path, pairs, **tables)


@dataclasses.dataclass
class StubProcess:
    """A stub as its own process."""

    name: str
    url: str
    process: subprocess.Popen[bytes]


def _start_stub(settings: StubSettings) -> StubProcess:
    text = msgspec.json.encode(msgspec.structs.replace(settings, secret=SECRET)).decode()
    process = subprocess.Popen(
        [sys.executable, "-m", "bana.eval.stub", "--json-ready", "--settings", text],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    return StubProcess(settings.name, json.loads(process.stdout.readline())["url"], process)


@pytest.fixture
def stub_processes() -> Iterator[Callable[..., list[StubProcess]]]:
    """`stub_processes(settings, …)` starts one process each."""
    started: list[StubProcess] = []

    def start(*settings: StubSettings) -> list[StubProcess]:
        new = [_start_stub(s) for s in settings]
        started.extend(new)
        return new

    yield start
    for stub in started:
        stub.process.kill()
        stub.process.wait()
        assert stub.process.stdout is not None
        stub.process.stdout.close()
