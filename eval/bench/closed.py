"""Closed-loop load: a fixed number of requests out at any time, until all have been answered.

Saturation is what it is for; latency promises are judged in open loop (`load`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from bana.eval.bench.errors import BenchError
from bana.eval.bench.exchange import CountedExchange
from bana.eval.client.pool import ConnectionPool
from bana.eval.client.target import Target, encode_post


class ClosedLoad(msgspec.Struct, frozen=True):
    """Requests as JSON bodies of `path`, at most `concurrency` out at a time."""

    path: str
    bodies: Sequence[object]
    concurrency: int
    timeout_s: float


class ClosedResult(msgspec.Struct, frozen=True):
    """All exchanges in the order of their bodies, which is that of sending.

    `wall_s` is from the first send to the last byte.
    """

    exchanges: list[CountedExchange]
    wall_s: float


def run_closed(target: Target, load: ClosedLoad) -> ClosedResult:
    """Send all; BenchError when one fails or they are not over within `timeout_s`."""
    return asyncio.run(_run_closed(target, load))


async def _run_closed(target: Target, load: ClosedLoad) -> ClosedResult:
    loop = asyncio.get_running_loop()
    requests = [encode_post(target, load.path, body) for body in load.bodies]
    sent: list[CountedExchange] = []
    over: list[CountedExchange] = []
    all_over = asyncio.Event()

    def send_next() -> None:
        if len(sent) < len(requests):
            sent.append(CountedExchange(loop.time()))
            pool.send(requests[len(sent) - 1], sent[-1])

    def note_end(exchange: CountedExchange) -> None:
        over.append(exchange)
        if not exchange.is_ok or len(over) == len(load.bodies):
            all_over.set()
        # Not from within the connection's own callback: it must be idle first.
        loop.call_soon(send_next)

    pool = ConnectionPool(target, note_end, load.concurrency * 2)
    start_s = loop.time()
    try:
        for _ in range(load.concurrency):
            send_next()
        await _wait(all_over, load.timeout_s, over)
        wall_s = loop.time() - start_s
    finally:
        requests.clear()
        await pool.close()
    return ClosedResult(sent, wall_s)


async def _wait(all_over: asyncio.Event, timeout_s: float, over: Sequence[CountedExchange]) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await all_over.wait()
    except TimeoutError:
        raise BenchError(
            f"a round was not over within {timeout_s:g} s; {len(over)} requests were answered"
        ) from None
    failed = [e for e in over if not e.is_ok]
    if failed:
        raise BenchError(
            f"a request failed with status {failed[0].status}: "
            f"{failed[0].error or failed[0].rest[:300]!r}"
        )
