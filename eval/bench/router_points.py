"""The two measurements of the router benchmark: time to the first byte, and the rate held."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from bana.eval.bench.errors import BenchError
from bana.eval.bench.harness import Session
from bana.eval.bench.load import LoadPoint, PointResult, Sender, run_point
from bana.eval.bench.pairs import Run
from bana.eval.bench.router_settings import RouterSettings
from bana.eval.bench.routers import Side, Stage, opened
from bana.eval.bench.search import Verdict, search_capacity
from bana.eval.bench.trials import Values
from bana.eval.client.target import Target

PATH = "/v1/chat/completions"
MANY_OUT = 2_000
# Of the requests of a window, twice the share that may exceed a p99 limit.
LOST_SHARE = 0.02
CUT_FLOOR = 200


class RouterJob(msgspec.Struct, frozen=True):
    """What every measurement of a run shares."""

    session: Session
    settings: RouterSettings
    stage: Stage

    def plan_point(self, rate_rps: float, seed: int, max_outstanding: int) -> LoadPoint:
        """Short requests under all streams."""
        settings = self.settings
        return LoadPoint(rate_rps, settings.window_s, settings.streams, seed, max_outstanding)

    def plan_unloaded(self, seed: int) -> LoadPoint:
        """A few short requests alone."""
        settings = self.settings
        return LoadPoint(
            rate_rps=settings.unloaded_rate_rps,
            window_s=settings.unloaded_window_s,
            streams=msgspec.structs.replace(settings.streams, count=0),
            seed=seed,
            max_outstanding=MANY_OUT,
        )

    def seed_of(self, run: Run, trial: int = 0) -> int:
        """Other requests for each trial, the same for both sides of a pair."""
        return self.session.seed_of(run.index) * self.settings.search.trials + trial


def measure_first_byte(job: RouterJob, run: Run) -> Values:
    """First-byte time of short requests at a moderate rate, under the streams."""
    point = job.plan_point(job.settings.added_rate_rps, job.seed_of(run), MANY_OUT)
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
    settings = job.settings
    with opened(Side(run.side), job.stage) as targets:
        sender = build_sender(targets)
        unloaded_p99_s = _measure_unloaded(job, sender, run)
        ladder = _Ladder(job, sender, run, unloaded_p99_s * settings.p99_factor)
        capacity = search_capacity(ladder.probe, settings.search)
    whole = [result for result in ladder.results if not result.is_cut]
    return {
        "max_rps": capacity.held_rps,
        "is_not_limited_by_router": float(capacity.limit is not Verdict.EXCEEDED),
        "unloaded_p99_ms": unloaded_p99_s * 1e3,
        "trials": float(len(ladder.results)),
        "chunks_asked": float(sum(r.chunks_asked for r in whole)),
        "chunks_got": float(sum(r.chunks_got for r in whole)),
    }


def _measure_unloaded(job: RouterJob, sender: Sender, run: Run) -> float:
    """The p99 that the limit is made of: the median of as many trials as a point takes."""
    p99s = []
    for trial in range(job.settings.search.trials):
        result = run_point(sender, job.plan_unloaded(job.seed_of(run, trial)))
        _require_answers(run, result)
        p99s.append(result.latency_p99_s)
    return statistics.median(p99s)


def bound_outstanding(rate_rps: float, limit_s: float, window_s: float) -> int:
    """How many requests may be out before a point is cut off as lost.

    Those younger than the limit may still be in time, for which twice their mean number is
    allowed; the others are late already, and more of them than a p99 forgives.
    """
    return int(CUT_FLOOR + rate_rps * (2 * limit_s + LOST_SHARE * window_s))


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

    def probe(self, rate_rps: float, trial: int) -> Verdict:
        """Take one trial of a point, judge it and say so."""
        settings = self._job.settings
        cut = bound_outstanding(rate_rps, self._limit_s, settings.window_s)
        point = self._job.plan_point(rate_rps, self._job.seed_of(self._run, trial), cut)
        result = run_point(self._sender, point)
        self.results.append(result)
        seen = judge_point(result, self._limit_s, settings.client_late_share * self._limit_s)
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
