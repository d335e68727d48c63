"""A stand-in for an SGLang server: same paths and shapes, no model, faults on demand.

The front door's tests use it (`bana eval bench router` has a cheaper one). Settings may change
while it runs (`POST /stub/settings`), and `GET /stub/log` tells what it was asked.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator

import msgspec
from aiohttp import web

from bana.eval.stub_records import Fault, StubLog, StubRequest, StubSettings
from bana.eval.stub_server import StubServer

__all__ = [
    "Fault",
    "RunningStub",
    "StubLog",
    "StubRequest",
    "StubServer",
    "StubSettings",
    "run_stub",
]


class RunningStub(msgspec.Struct, frozen=True):
    """A stub that answers at `url`."""

    server: StubServer
    url: str


@contextlib.asynccontextmanager
async def run_stub(
    settings: StubSettings, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[RunningStub]:
    """Serve a stub in this event loop; port 0 takes a free one."""
    server = StubServer(settings)
    runner = web.AppRunner(
        server.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1
    )
    await runner.setup()
    await web.TCPSite(runner, host, port, backlog=4096).start()
    publishing = asyncio.create_task(server.publish()) if server.is_report_wanted else None
    try:
        taken = runner.addresses[0][1]
        yield RunningStub(server, f"http://{host}:{taken}")
    finally:
        if publishing is not None:
            publishing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await publishing
        await runner.cleanup()


def main(arguments: list[str]) -> int:
    """`python -m bana.eval.stub`: serve one stub until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m bana.eval.stub", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--settings", default="{}", help="StubSettings as JSON")
    parser.add_argument("--json-ready", action="store_true", help="print one JSON line when ready")
    given = parser.parse_args(arguments)
    try:
        settings = msgspec.json.decode(given.settings, type=StubSettings)
    except msgspec.DecodeError as error:
        parser.error(f"--settings {given.settings!r} cannot be used: {error}")
    asyncio.run(_serve(settings, given))
    return 0


async def _serve(settings: StubSettings, given: argparse.Namespace) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with run_stub(settings, given.host, given.port) as stub:
        line = {"url": stub.url, "pid": os.getpid()}
        print(json.dumps(line) if given.json_ready else f"serving at {stub.url}", flush=True)
        await stopping.wait()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
