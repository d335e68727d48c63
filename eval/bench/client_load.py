"""The load of the client benchmark: streams held open, and short requests at a rate.

streams opened one by one ──▶ settle ──▶ short requests (the window) ──▶ streams run out
"""

from __future__ import annotations

import math
from random import Random

import msgspec
import numpy as np

from bana.eval.bench.load import SETTLE_S, Streams, plan_arrivals
from bana.eval.client.plan import ClientPlan, Timeouts
from bana.eval.client.run import run_load
from bana.eval.client.target import Target
from bana.eval.client.validity import measure_lateness
from bana.eval.client.watch import NoWatch
from bana.eval.requests import Ending, Limits, LoadRun, Offered, Phase, Prompt, Workload

# Promises, so that each request carries the headers of a real run.
LIMITS = Limits(ttft_s=1.0, tpot_s=0.1)
VOCABULARY = 32_000
DRAIN_S = 15.0


class ClientPoint(msgspec.Struct, frozen=True):
    """`rate_rps` requests of one token for `window_s` while the streams run."""

    rate_rps: float
    window_s: float
    streams: Streams
    prompt_tokens: int
    seed: int

    @property
    def held_s(self) -> float:
        """How long each stream lasts: from the first opening past the end of the window."""
        return self.streams.opening_s + 2 * SETTLE_S + self.window_s


class PointSeen(msgspec.Struct, frozen=True):
    """What a point gave; lateness and TTFT are those of the short requests, in seconds."""

    offered: int
    lost: int
    lateness_p50_s: float
    lateness_p99_s: float
    ttft_p50_s: float
    first_error: str | None


def build_point(point: ClientPoint) -> Workload:
    """The schedule of a point, the same for the same seed."""
    rng = Random(point.seed)
    prompt = Prompt(token_ids=[rng.randrange(VOCABULARY) for _ in range(point.prompt_tokens)])
    chunks = math.ceil(point.held_s * point.streams.chunks_per_s)
    start_s = point.streams.opening_s + SETTLE_S
    streams = [
        _ask(place / point.streams.opened_per_s, prompt, chunks, Phase.WARMUP)
        for place in range(point.streams.count)
    ]
    arrivals = plan_arrivals(point.rate_rps, point.window_s, rng)
    shorts = [_ask(start_s + at_s, prompt, 1, Phase.WINDOW) for at_s in arrivals]
    requests = tuple(
        msgspec.structs.replace(request, index=index)
        for index, request in enumerate([*streams, *shorts])
    )
    return Workload(requests, point.window_s, point.seed, "", {})


def run_client_point(target: Target, point: ClientPoint, most_out: int) -> PointSeen:
    """Run a point with the load generator as users run it; KeyboardInterrupt on Ctrl-C."""
    plan = ClientPlan(
        target=target,
        timeouts=Timeouts(drain_s=point.held_s + DRAIN_S),
        max_outstanding=point.streams.count + most_out,
        probe_rps=None,
        sample_interval_s=None,
    )
    run = run_load(build_point(point), plan, NoWatch())
    if run.is_interrupted:
        raise KeyboardInterrupt
    return summarise_point(run)


def summarise_point(run: LoadRun) -> PointSeen:
    """A request is lost unless it is finished with as many tokens as it asked for."""
    shorts = [seen for seen in run.observed if seen.phase is Phase.WINDOW]
    lost = [
        seen
        for seen in run.observed
        if seen.ending is not Ending.FINISHED or seen.output_tokens != seen.asked_tokens
    ]
    late_s = [seen.sent_s - seen.due_s for seen in shorts if seen.sent_s is not None]
    ttfts_s = [seen.first_s - seen.due_s for seen in shorts if seen.first_s is not None]
    return PointSeen(
        offered=len(shorts),
        lost=len(lost),
        lateness_p50_s=float(np.median(late_s)) if late_s else math.inf,
        lateness_p99_s=(measure_lateness(shorts) or 0.0) if late_s else math.inf,
        ttft_p50_s=float(np.median(ttfts_s)) if ttfts_s else math.inf,
        first_error=lost[0].error or "an answer of another length" if lost else None,
    )


def _ask(due_s: float, prompt: Prompt, tokens: int, phase: Phase) -> Offered:
    length = len(prompt.token_ids or ())
    return Offered(0, due_s, prompt, length, tokens, limits=LIMITS, phase=phase)
