"""The highest rate that a server holds: bracketed by doubling, then narrowed by bisection.

    rate  ──held──▶ ×2 ──held──▶ ×2 ──exceeded──▶ │ bisect (geometric mean) until high/low is small

Source: ours; bracketing before bisection, so that a range that holds no answer is never narrowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from functools import partial

import msgspec

from bana.eval.bench.errors import BenchError
from bana.slo.errors import ConfigError


class Verdict(StrEnum):
    """What a load point says about the server, or that the client cannot tell."""

    HELD = "held"
    EXCEEDED = "exceeded"
    CLIENT_LATE = "client_late"


_ORDER = (Verdict.HELD, Verdict.CLIENT_LATE, Verdict.EXCEEDED)


class SearchPlan(msgspec.Struct, frozen=True):
    """Where to look, in requests/s, and how close the bracket must get (`tolerance` = high/low).

    `trials` of each point, an odd number, decide by their median.
    """

    start_rps: float
    min_rps: float
    max_rps: float
    tolerance: float
    trials: int

    def __post_init__(self) -> None:
        if not 0 < self.min_rps <= self.start_rps <= self.max_rps or self.tolerance <= 1:
            raise ConfigError(
                f"search plan {self}: allowed are 0 < min_rps <= start_rps <= max_rps and "
                "tolerance > 1"
            )
        if self.trials < 1 or self.trials % 2 == 0:
            raise ConfigError(f"search plan {self}: trials must be odd, so that one is the median")


class Capacity(msgspec.Struct, frozen=True):
    """The highest rate held, and what stood above it; HELD when the range itself ended there."""

    held_rps: float
    limit: Verdict


Probe = Callable[[float, int], Verdict]
Judge = Callable[[float], Verdict]


def search_capacity(probe: Probe, plan: SearchPlan) -> Capacity:
    """The highest rate held, to `tolerance`; BenchError when even `min_rps` is not.

    `probe(rate, trial)` takes one trial of a point.
    O(log(max/min) + log(1/(tolerance - 1))) points.
    """

    def judge(rate_rps: float) -> Verdict:
        return take_median(partial(probe, rate_rps), plan.trials)

    held, verdict, above = _bracket(judge, plan)
    while verdict is not Verdict.HELD and above / held > plan.tolerance:
        middle = math.sqrt(held * above)
        seen = judge(middle)
        if seen is Verdict.HELD:
            held = middle
        else:
            above, verdict = middle, seen
    return Capacity(held, verdict)


def take_median(take: Callable[[int], Verdict], trials: int) -> Verdict:
    """The median verdict of trials 0, 1, …, HELD < CLIENT_LATE < EXCEEDED; stops once decided.

    Each verdict is outvoted as easily as any other. Taking only failed points again would move
    every answer upwards, and that of the noisier server most.
    """
    seen: list[Verdict] = []
    while len(seen) < trials:
        seen.append(take(len(seen)))
        if seen.count(seen[-1]) > trials // 2:
            return seen[-1]
    return sorted(seen, key=_ORDER.index)[trials // 2]


def _bracket(judge: Judge, plan: SearchPlan) -> tuple[float, Verdict, float]:
    """A held rate, and the verdict and rate above it; HELD there means the range's end held."""
    rate = plan.start_rps
    verdict = judge(rate)
    while verdict is Verdict.HELD and rate < plan.max_rps:
        below, rate = rate, min(rate * 2, plan.max_rps)
        verdict = judge(rate)
        if verdict is not Verdict.HELD:
            return below, verdict, rate
    if verdict is Verdict.HELD:
        return rate, verdict, rate
    while rate > plan.min_rps:
        above, above_verdict, rate = rate, verdict, max(rate / 2, plan.min_rps)
        verdict = judge(rate)
        if verdict is Verdict.HELD:
            return rate, above_verdict, above
    raise BenchError(
        f"even {plan.min_rps:g} requests/s were not held ({verdict.value}); is the machine busy?"
    )
