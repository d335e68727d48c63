"""Running a front door inside an event loop, on the socket that its spec names."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import AsyncIterator

from aiohttp import web

from sglang_bana.config import FrontDoorSpec
from sglang_bana.router.app import FrontDoor
from sglang_bana.router.upstream import Upstream

BACKLOG = 4096
CLIENT_IDLE_S = 75.0


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
        runner = web.AppRunner(
            _build_app(door, spec.config.limits.max_body_bytes),
            handle_signals=False,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=CLIENT_IDLE_S,
            shutdown_timeout=1.0,
        )
        await runner.setup()
        background = asyncio.create_task(door.run())
        try:
            listener = socket.socket(fileno=spec.listen_fd)
            await web.SockSite(runner, listener, backlog=BACKLOG).start()
            yield RunningDoor(door, background)
        finally:
            await runner.cleanup()
            background.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await background


def _build_app(door: FrontDoor, max_body_bytes: int) -> web.Application:
    """One handler for every path, line breaks included, because the endpoint table decides."""
    app = web.Application(client_max_size=max_body_bytes)
    app.router.add_route("*", r"/{path:[\s\S]*}", door.answer)
    return app
