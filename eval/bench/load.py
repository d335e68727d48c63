"""One load point: held streams plus short requests at a rate, open loop, on absolute times.

    open streams ──▶ settle ──▶ short requests on schedule (the window) ──▶ streams run out

A point is cut off as soon as more requests are out than its limit allows, so that an
overloaded server does not take the client's memory with it.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random

import msgspec
import numpy as np

from bana.eval.bench.exchange import CountedExchange
from bana.eval.client.pool import ConnectionPool
from bana.eval.client.quiet import without_gc
from bana.eval.client.target import Target, encode_post

SETTLE_S = 0.5
DRAIN_TIMEOUT_S = 15.0
MAX_CONNECTIONS = 8192
WARM_REQUESTS = 64


class Streams(msgspec.Struct, frozen=True):
    """Streams held open during a point: how many, how fast each, how fast they are opened."""

    count: int
    chunks_per_s: float
    opened_per_s: float

    @property
    def opening_s(self) -> float:
        return self.count / self.opened_per_s


class LoadPoint(msgspec.Struct, frozen=True):
    """`rate_rps` short requests for `window_s` while the streams run."""

    rate_rps: float
    window_s: float
    streams: Streams
    seed: int
    max_outstanding: int


class Sender(msgspec.Struct, frozen=True):
    """How the requests of a point look; `stream_body(chunks)` asks for that many chunks."""

    targets: Sequence[Target]
    path: str
    short_body: Callable[[int], object]
    stream_body: Callable[[int], object]


class PointResult(msgspec.Struct, frozen=True):
    """What a point gave: times in seconds, latency from the schedule, first byte from the send.

    `is_cut`: ended early because too many requests were out. Failed requests are in `latency_s`
    as infinite. Chunks lost are counted against what the streams asked for.
    """

    offered: int
    failed: int
    is_cut: bool
    latency_p50_s: float
    latency_p99_s: float
    first_byte_p50_s: float
    lateness_p99_s: float
    chunks_asked: int
    chunks_got: int
    streams_failed: int
    first_error: str | None


class _Running:
    """The requests of one kind that are out, and those that are over."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self.over: list[CountedExchange] = []
        self.sent = 0
        self._pools = [ConnectionPool(t, self.over.append, MAX_CONNECTIONS) for t in targets]
        self._turn = itertools.cycle(self._pools)

    @property
    def outstanding(self) -> int:
        return self.sent - len(self.over)

    def send(self, requests: Mapping[Target, bytes], due_s: float) -> None:
        pool = next(self._turn)
        self.sent += 1
        pool.send(requests[pool.target], CountedExchange(due_s))

    async def drain(self, timeout_s: float) -> None:
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while self.outstanding and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        for pool in self._pools:
            await pool.close()


def run_point(sender: Sender, point: LoadPoint) -> PointResult:
    """Run one point to its end in an event loop of its own."""
    with without_gc():
        return asyncio.run(_run_point(sender, point))


async def _run_point(sender: Sender, point: LoadPoint) -> PointResult:
    shorts, streams = _Running(sender.targets), _Running(sender.targets)
    held_s = point.streams.opening_s + 2 * SETTLE_S + point.window_s
    chunks = math.ceil(held_s * point.streams.chunks_per_s)
    try:
        await _warm(sender, point.streams.opened_per_s)
        await _open_streams(sender, point.streams, streams, chunks)
        await asyncio.sleep(SETTLE_S)
        is_cut = await _send_shorts(sender, point, shorts)
        if not is_cut:
            await shorts.drain(DRAIN_TIMEOUT_S)
            await streams.drain(held_s + DRAIN_TIMEOUT_S)
    finally:
        await shorts.close()
        await streams.close()
    summary = _summarise(shorts, streams, chunks)
    return msgspec.structs.replace(summary, is_cut=is_cut)


async def _warm(sender: Sender, rate_rps: float) -> None:
    """A few unlike requests, so that code paths and upstream connections are in use."""
    warm = _Running(sender.targets)
    try:
        for due_s in _absolute(np.arange(WARM_REQUESTS) / rate_rps):
            await _sleep_until(due_s)
            body = sender.short_body(-warm.sent - 1)
            warm.send({t: encode_post(t, sender.path, body) for t in sender.targets}, due_s)
        await warm.drain(DRAIN_TIMEOUT_S)
    finally:
        await warm.close()


async def _open_streams(sender: Sender, plan: Streams, streams: _Running, chunks: int) -> None:
    body = sender.stream_body(chunks)
    requests = {t: encode_post(t, sender.path, body) for t in sender.targets}
    for due_s in _absolute(np.arange(plan.count) / plan.opened_per_s):
        await _sleep_until(due_s)
        streams.send(requests, due_s)


async def _send_shorts(sender: Sender, point: LoadPoint, shorts: _Running) -> bool:
    """Send on schedule; True when cut off because too many were out."""
    offsets = plan_arrivals(point.rate_rps, point.window_s, Random(point.seed))
    requests = [
        {t: encode_post(t, sender.path, sender.short_body(i)) for t in sender.targets}
        for i in range(min(len(offsets), 256))
    ]
    for i, due_s in enumerate(_absolute(np.asarray(offsets))):
        await _sleep_until(due_s)
        if shorts.outstanding > point.max_outstanding:
            return True
        shorts.send(requests[i % len(requests)], due_s)
    return False


def plan_arrivals(rate_rps: float, window_s: float, rng: Random) -> list[float]:
    """Poisson arrival times within the window, the same for the same seed."""
    times: list[float] = []
    now_s = rng.expovariate(rate_rps)
    while now_s < window_s:
        times.append(now_s)
        now_s += rng.expovariate(rate_rps)
    return times


def _absolute(offsets_s: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Iterator[float]:
    start_s = asyncio.get_running_loop().time()
    return (start_s + float(offset_s) for offset_s in offsets_s)


async def _sleep_until(due_s: float) -> None:
    delay_s = due_s - asyncio.get_running_loop().time()
    if delay_s > 0:
        await asyncio.sleep(delay_s)


def _summarise(shorts: _Running, streams: _Running, chunks: int) -> PointResult:
    good = [e for e in shorts.over if e.is_ok]
    failed = shorts.sent - len(good)
    latencies = [e.end_s - e.due_s for e in good if e.end_s is not None] + [math.inf] * failed
    first_bytes = [e.first_byte_s - e.sent_s for e in good if e.first_byte_s and e.sent_s]
    late = [e.sent_s - e.due_s for e in shorts.over if e.sent_s is not None]
    errors = [e.error or f"status {e.status}" for e in [*shorts.over, *streams.over] if not e.is_ok]
    return PointResult(
        offered=shorts.sent,
        failed=failed,
        is_cut=False,
        latency_p50_s=_quantile(latencies, 0.5),
        latency_p99_s=_quantile(latencies, 0.99),
        first_byte_p50_s=_quantile(first_bytes, 0.5),
        lateness_p99_s=_quantile(late, 0.99),
        chunks_asked=chunks * streams.sent,
        chunks_got=sum(e.events for e in streams.over),
        streams_failed=streams.sent - sum(e.is_ok and e.is_finished for e in streams.over),
        first_error=errors[0] if errors else None,
    )


def _quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all reach at most; infinite when there is none."""
    if not values:
        return math.inf
    return float(np.quantile(values, share, method="higher"))
