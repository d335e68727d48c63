"""The highest rate that a server holds: bracketed by doubling, then narrowed by bisection.

    rate  ──held──▶ ×2 ──held──▶ ×2 ──exceeded──▶ │ bisect (geometric mean) until high/low is small

Source: ours; bracketing before bisection, so that a range that holds no answer is never narrowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum

import msgspec

from bana.eval.bench.errors import BenchError
from bana.slo.errors import ConfigError


class Verdict(StrEnum):
    """What a load point says about the server, or that the client cannot tell."""

    HELD = "held"
    EXCEEDED = "exceeded"
    CLIENT_LATE = "client_late"


class SearchPlan(msgspec.Struct, frozen=True):
    """Where to look, in requests/s, and how close the bracket must get (`tolerance` = high/low)."""

    start_rps: float
    min_rps: float
    max_rps: float
    tolerance: float

    def __post_init__(self) -> None:
        if not 0 < self.min_rps <= self.start_rps <= self.max_rps or self.tolerance <= 1:
            raise ConfigError(
                f"search plan {self}: allowed are 0 < min_rps <= start_rps <= max_rps and "
                "tolerance > 1"
            )


class Capacity(msgspec.Struct, frozen=True):
    """The highest rate held, and what stood above it; HELD when the range itself ended there."""

    held_rps: float
    limit: Verdict


Probe = Callable[[float], Verdict]


def search_capacity(probe: Probe, plan: SearchPlan) -> Capacity:
    """The highest rate held, to `tolerance`; BenchError when even `min_rps` is not.

    A point that is not held is taken again and the second verdict counts, so that one disturbance
    of the machine does not cap the answer. O(log(max/min) + log(1/(tolerance - 1))) probes.
    """
    held, verdict, above = _bracket(probe, plan)
    while verdict is not Verdict.HELD and above / held > plan.tolerance:
        middle = math.sqrt(held * above)
        seen = _probe_twice_unless_held(probe, middle)
        if seen is Verdict.HELD:
            held = middle
        else:
            above, verdict = middle, seen
    return Capacity(held, verdict)


def _bracket(probe: Probe, plan: SearchPlan) -> tuple[float, Verdict, float]:
    """A held rate, and the verdict and rate above it; HELD there means the range's end held."""
    rate = plan.start_rps
    verdict = _probe_twice_unless_held(probe, rate)
    while verdict is Verdict.HELD and rate < plan.max_rps:
        below, rate = rate, min(rate * 2, plan.max_rps)
        verdict = _probe_twice_unless_held(probe, rate)
        if verdict is not Verdict.HELD:
            return below, verdict, rate
    if verdict is Verdict.HELD:
        return rate, verdict, rate
    while rate > plan.min_rps:
        above, above_verdict, rate = rate, verdict, max(rate / 2, plan.min_rps)
        verdict = _probe_twice_unless_held(probe, rate)
        if verdict is Verdict.HELD:
            return rate, above_verdict, above
    raise BenchError(
        f"even {plan.min_rps:g} requests/s were not held ({verdict.value}); is the machine busy?"
    )


def _probe_twice_unless_held(probe: Probe, rate_rps: float) -> Verdict:
    verdict = probe(rate_rps)
    return verdict if verdict is Verdict.HELD else probe(rate_rps)
