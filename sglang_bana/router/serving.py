"""Running a front door inside an event loop, on the socket that its spec names."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import resource
import socket
from collections.abc import AsyncIterator
from functools import partial

from aiohttp import web

from sglang_bana.config import FrontDoorSpec, LimitsConfig
from sglang_bana.router.app import FrontDoor
from sglang_bana.router.doorway import Doorway
from sglang_bana.router.protocol import answer_expectation
from sglang_bana.router.upstream import Upstream

# The kernel keeps so many connections for us, or somaxconn; a client beyond them tries again by
# itself, after 1 s, 3 s, 7 s.
BACKLOG = 4096
# One turn of the loop takes so many, or a burst would keep it from everything else for seconds.
ACCEPTED_AT_ONCE = 64
CLIENT_IDLE_S = 75.0
OWN_FILES = 256


@dataclasses.dataclass(frozen=True)
class RunningDoor:
    """A front door that answers; `background` ends only when something is broken."""

    door: FrontDoor
    background: asyncio.Task[None]


@contextlib.asynccontextmanager
async def run_door(spec: FrontDoorSpec) -> AsyncIterator[RunningDoor]:
    """Serve until the context ends; the descriptor `spec.listen_fd` is taken over and closed."""
    async with Upstream(spec.config.limits) as upstream:
        door = FrontDoor(spec, upstream)
        doorway = Doorway(bound_connections(spec.config.limits), CLIENT_IDLE_S, CLIENT_IDLE_S)
        runner = web.AppRunner(
            _build_app(door, doorway, spec.config.limits.max_body_bytes),
            handle_signals=False,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=1.0,
        )
        await runner.setup()
        assert runner.server is not None
        background = asyncio.create_task(door.run())
        listener, listening = None, socket.socket(fileno=spec.listen_fd)
        try:
            # To asyncio the two are one number.
            listener = await asyncio.get_running_loop().create_server(
                partial(doorway.accept, runner.server), sock=listening, backlog=ACCEPTED_AT_ONCE
            )
            listening.listen(BACKLOG)
            yield RunningDoor(door, background)
        finally:
            if listener is not None:
                listener.close()
            await runner.cleanup()
            background.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await background


def bound_connections(limits: LimitsConfig) -> int:
    """How many clients may be connected.

    Each request needs a second file, towards an instance, and one that moved another for a while.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OWN_FILES
    return max(1, min(limits.max_connections, max(files // 2, files - 2 * limits.max_requests)))


def _build_app(door: FrontDoor, doorway: Doorway, max_body_bytes: int) -> web.Application:
    """One handler for every path, line breaks included, because the endpoint table decides."""

    async def answer(request: web.Request) -> web.StreamResponse:
        doorway.note_request(request)
        return await door.answer(request)

    app = web.Application(client_max_size=max_body_bytes)
    app.router.add_route("*", r"/{path:[\s\S]*}", answer, expect_handler=answer_expectation)
    return app
