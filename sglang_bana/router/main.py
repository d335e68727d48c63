"""The front door's process: `python -m sglang_bana.router.main SPEC.json`.

It inherits the listening socket from the launcher, ends when that process dies, drains on the
first SIGTERM or SIGINT and exits at once on the second.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from pathlib import Path

import msgspec
from aiohttp import web

from bana.slo.errors import BanaError
from sglang_bana.config import FrontDoorSpec
from sglang_bana.lifeline import die_with_parent
from sglang_bana.router.app import FrontDoor, build_app
from sglang_bana.router.upstream import Upstream

BACKLOG = 4096
CLIENT_IDLE_S = 75.0
EXIT_USAGE = 2
EXIT_FORCED = 130
_GC_THRESHOLDS = (50_000, 20, 50)
_LOG = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Serve until told to stop; the exit status."""
    if len(arguments) != 1:
        print("usage: python -m sglang_bana.router.main SPEC.json", file=sys.stderr)
        return EXIT_USAGE
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        spec = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=FrontDoorSpec)
    except (OSError, msgspec.DecodeError) as error:
        print(f"bana: cannot read the front door's spec {arguments[0]}: {error}", file=sys.stderr)
        return EXIT_USAGE
    die_with_parent(spec.parent_pid)
    try:
        asyncio.run(serve(spec))
    except BanaError as error:
        print(f"bana: {error}", file=sys.stderr)
        return EXIT_USAGE
    return 0


async def serve(spec: FrontDoorSpec) -> None:
    """Serve on the inherited socket until a signal has drained everything."""
    stopping = asyncio.Event()
    _listen_for_signals(stopping)
    async with Upstream(spec.config.limits) as upstream:
        door = FrontDoor(spec, upstream)
        runner = web.AppRunner(
            build_app(door, spec.config.limits.max_body_bytes),
            handle_signals=False,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=CLIENT_IDLE_S,
            shutdown_timeout=1.0,
        )
        await runner.setup()
        background = asyncio.create_task(door.run())
        background.add_done_callback(lambda _: stopping.set())
        try:
            listener = socket.socket(fileno=spec.listen_fd)
            await web.SockSite(runner, listener, backlog=BACKLOG).start()
            # Start-up objects live as long as the process: keep them out of every collection.
            gc.freeze()
            gc.set_threshold(*_GC_THRESHOLDS)
            _LOG.info("the front door serves %d instances", len(door.board.all()))
            await stopping.wait()
            if not background.done():
                _LOG.info("draining %d requests", len(door.flights))
                await door.drain()
        finally:
            await runner.cleanup()
            background.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await background


def _listen_for_signals(stopping: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if stopping.is_set():
            os._exit(EXIT_FORCED)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
