"""The front door's process: `python -m sglang_bana.router.main SPEC.json`.

It inherits the listening socket from the launcher, ends when that process dies, drains on the
first SIGTERM or SIGINT and exits at once on the second.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from pathlib import Path

import msgspec

from bana.slo.errors import BanaError
from sglang_bana.config import FrontDoorSpec
from sglang_bana.lifeline import die_with_parent
from sglang_bana.router.serving import run_door

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
    _raise_file_limit()
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
    async with run_door(spec) as running:
        running.background.add_done_callback(lambda _: stopping.set())
        # Start-up objects live as long as the process: keep them out of every collection.
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        _LOG.info("the front door serves %d instances", len(spec.upstreams))
        await stopping.wait()
        if not running.background.done():
            _LOG.info("draining %d requests", len(running.door.flights))
            await running.door.drain()


def _raise_file_limit() -> None:
    """Allow as many open files as the system lets us: every stream takes two sockets."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


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
