"""The two measurements of the router benchmark: time to the first byte, and the rate held."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bana.eval.bench.errors import BenchError
from bana.eval.bench.harness import Session
from bana.eval.bench.http import Target
from bana.eval.bench.load import LoadPoint, PointResult, Sender, run_point
from bana.eval.bench.pairs import Run
from bana.eval.bench.router_settings import RouterSettings
from bana.eval.bench.routers import Side, Stage, opened
from bana.eval.bench.search import Verdict, search_capacity
from bana.eval.bench.trials import Values

PATH = "/v1/chat/completions"
# A point is cut off once this many times the requests that the p99 limit allows are out.
CUT_FACTOR = 4.0
CUT_FLOOR = 200


class RouterJob(msgspec.Struct, frozen=True):
    """What every measurement of a run shares."""

    session: Session
    settings: RouterSettings
    stage: Stage

    def plan_point(self, rate_rps: float, index: int, max_outstanding: int) -> LoadPoint:
        """Short requests under all streams; the same requests for every side of pair `index`."""
        settings = self.settings
        seed = self.session.seed_of(index)
        return LoadPoint(rate_rps, settings.window_s, settings.streams, seed, max_outstanding)

    def plan_unloaded(self, index: int) -> LoadPoint:
        """A few short requests alone."""
        settings = self.settings
        return LoadPoint(
            rate_rps=settings.unloaded_rate_rps,
            window_s=settings.unloaded_window_s,
            streams=msgspec.structs.replace(settings.streams, count=0),
            seed=self.session.seed_of(index),
            max_outstanding=CUT_FLOOR,
        )


def measure_first_byte(job: RouterJob, run: Run) -> Values:
    """First-byte time of short requests at a moderate rate, under the streams."""
    point = job.plan_point(job.settings.added_rate_rps, run.index, 10 * CUT_FLOOR)
    with opened(Side(run.side), job.stage) as targets:
        result = run_point(build_sender(targets), point)
    _require_answers(run, result)
    return {
        "first_byte_p50_ms": result.first_byte_p50_s * 1e3,
        "latency_p99_ms": result.latency_p99_s * 1e3,
        "client_lateness_p99_ms": result.lateness_p99_s * 1e3,
        "chunks_asked": float(result.chunks_asked),
        "chunks_got": float(result.chunks_got),
    }


def search_rate(job: RouterJob, run: Run) -> Values:
    """The highest rate of short requests held under the streams."""
    with opened(Side(run.side), job.stage) as targets:
        sender = build_sender(targets)
        unloaded = run_point(sender, job.plan_unloaded(run.index))
        _require_answers(run, unloaded)
        ladder = _Ladder(job, sender, run, unloaded.latency_p99_s * job.settings.p99_factor)
        capacity = search_capacity(ladder.probe, job.settings.search)
    whole = [result for result in ladder.results if not result.is_cut]
    return {
        "max_rps": capacity.held_rps,
        "is_not_limited_by_router": float(capacity.limit is not Verdict.EXCEEDED),
        "unloaded_p99_ms": unloaded.latency_p99_s * 1e3,
        "points": float(len(ladder.results)),
        "chunks_asked": float(sum(r.chunks_asked for r in whole)),
        "chunks_got": float(sum(r.chunks_got for r in whole)),
    }


def judge_point(result: PointResult, limit_s: float, late_s: float) -> Verdict:
    """Whether the server held the point with p99 <= `limit_s` and every chunk delivered.

    A point that was not held while the client's p99 lateness exceeds `late_s` proves nothing.
    """
    is_held = (
        not result.is_cut
        and result.latency_p99_s <= limit_s
        and result.chunks_got == result.chunks_asked
        and result.streams_failed == 0
    )
    if is_held:
        return Verdict.HELD
    return Verdict.CLIENT_LATE if result.lateness_p99_s > late_s else Verdict.EXCEEDED


def build_sender(targets: Sequence[Target]) -> Sender:
    """Chat completions: short ones in one piece, streams of a given number of chunks."""
    return Sender(
        targets=targets,
        path=PATH,
        short_body=lambda index: _ask(f"What is {index} and {index}?", 1),
        stream_body=lambda chunks: _ask("Tell me a story.", chunks) | {"stream": True},
    )


class _Ladder:
    """The load points of one search."""

    def __init__(self, job: RouterJob, sender: Sender, run: Run, limit_s: float) -> None:
        self.results: list[PointResult] = []
        self._job = job
        self._sender = sender
        self._run = run
        self._limit_s = limit_s

    def probe(self, rate_rps: float) -> Verdict:
        """Take one point, judge it and say so."""
        cut = int(CUT_FLOOR + CUT_FACTOR * rate_rps * self._limit_s)
        result = run_point(self._sender, self._job.plan_point(rate_rps, self._run.index, cut))
        self.results.append(result)
        late_s = self._job.settings.client_late_share * self._limit_s
        seen = judge_point(result, self._limit_s, late_s)
        self._say(rate_rps, result, seen)
        return seen

    def _say(self, rate_rps: float, result: PointResult, seen: Verdict) -> None:
        lost = result.chunks_asked - result.chunks_got
        ending = "cut off" if result.is_cut else f"{lost} chunks lost"
        first = f", first error: {result.first_error}" if result.first_error else ""
        self._job.session.say(
            f"  {self._run.side} at {rate_rps:.0f}/s: {seen.value}, "
            f"p99 {result.latency_p99_s * 1e3:.1f} of {self._limit_s * 1e3:.1f} ms, "
            f"{result.failed} of {result.offered} failed, {ending}, "
            f"client late by {result.lateness_p99_s * 1e3:.1f} ms{first}"
        )


def _ask(text: str, max_tokens: int) -> dict[str, object]:
    message = {"role": "user", "content": text}
    return {"model": "null", "messages": [message], "max_tokens": max_tokens}


def _require_answers(run: Run, result: PointResult) -> None:
    if result.failed or result.is_cut:
        raise BenchError(
            f"{run.side}: {result.failed} of {result.offered} requests failed at a light load "
            f"(first: {result.first_error}); nothing can be compared"
        )
