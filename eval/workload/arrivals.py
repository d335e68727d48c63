"""When requests are due: Poisson, gamma and constant processes, ramped by warping time.

A process is drawn in *operational time*, where one arrival a unit is due, and carried over to
seconds by the inverse of the expected number of arrivals. So a ramped Poisson process is exactly
the inhomogeneous one, and the same seed at another rate is the same process, compressed.

    expected       ╭── rate * end
    arrivals     ╭─╯
              ╭──╯          lead: before zero and warm-up, at the start factor
       ───────╯
       lead   window  tail
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from bana.eval.requests import Phase
from bana.eval.workload.spec import ArrivalKind, RampSpec
from bana.slo.errors import ConfigError

MAX_DRAWS = 10_000
Rng = np.random.Generator | np.random.RandomState


class Phases(msgspec.Struct, frozen=True):
    """How long each phase of the schedule takes, one after the other from zero."""

    warmup_s: float
    window_s: float
    cooldown_s: float

    @property
    def total_s(self) -> float:
        return self.warmup_s + self.window_s + self.cooldown_s

    def phase_at(self, due_s: float) -> Phase:
        """The phase that a request due then belongs to."""
        if due_s < self.warmup_s:
            return Phase.WARMUP
        return Phase.WINDOW if due_s < self.warmup_s + self.window_s else Phase.COOLDOWN


class Process(msgspec.Struct, frozen=True):
    """A renewal process and its rate. `before_s`: it runs that long before zero already."""

    kind: ArrivalKind
    rate_rps: float
    cv: float = 1.0
    ramp: RampSpec = RampSpec(1.0, 1.0)
    before_s: float = 0.0


def plan_arrivals(process: Process, phases: Phases, rng: Rng) -> NDArray[np.float64]:
    """Sorted times in seconds from -before_s up to the end of the schedule.

    The process is in equilibrium from its first moment: its mean rate holds at any time (but of
    `bench_serving`, whose first request is due at once). Draws come one by one, so that a longer
    schedule begins with the same arrivals. O(arrivals).
    """
    warp = _Warp(process, phases)
    if process.kind is ArrivalKind.CONSTANT:
        units: NDArray[np.float64] = np.arange(0.5, warp.total, dtype=np.float64)
    elif process.kind is ArrivalKind.GAMMA:
        units = _renew(_GammaGaps(process.cv, rng), warp.total)
    elif process.kind is ArrivalKind.BENCH_SERVING:
        units = _renew(_BenchServingGaps(rng), warp.total)
    else:
        units = _renew(_ExponentialGaps(rng), warp.total)
    times = warp.to_seconds(units)
    return times[times < phases.total_s]


class _Warp:
    """Operational time and seconds, one into the other."""

    def __init__(self, process: Process, phases: Phases) -> None:
        self._rate = process.rate_rps
        self._ramp = process.ramp
        self._before_s = process.before_s
        self._phases = phases
        self._lead = self._rate * self._ramp.start * (process.before_s + phases.warmup_s)
        mean = (self._ramp.start + self._ramp.end) / 2
        self._window = self._rate * mean * phases.window_s
        self.total = self._lead + self._window + self._rate * self._ramp.end * phases.cooldown_s

    def to_seconds(self, units: NDArray[np.float64]) -> NDArray[np.float64]:
        """The times at which so many arrivals were expected."""
        in_window = (units >= self._lead) & (units < self._lead + self._window)
        in_tail = units >= self._lead + self._window
        times = np.empty_like(units)
        lead = units[~in_window & ~in_tail]
        times[~in_window & ~in_tail] = lead / (self._rate * self._ramp.start or 1.0)
        times[~in_window & ~in_tail] -= self._before_s
        times[in_window] = self._in_window(units[in_window] - self._lead)
        tail = units[in_tail] - self._lead - self._window
        times[in_tail] = tail / (self._rate * self._ramp.end or 1.0)
        times[in_tail] += self._phases.warmup_s + self._phases.window_s
        # Rounding may place the last of one part a hair after the first of the next.
        ordered: NDArray[np.float64] = np.maximum.accumulate(times)
        return ordered

    def _in_window(self, units: NDArray[np.float64]) -> NDArray[np.float64]:
        # Solves rate * (start * t + (end - start) * t**2 / (2 * window)) = units for t.
        start, slope = self._ramp.start, self._ramp.end - self._ramp.start
        square = start**2 + 2 * slope * units / (self._rate * self._phases.window_s)
        divisor = self._rate * (start + np.sqrt(np.maximum(square, 0.0)))
        times: NDArray[np.float64] = 2 * units / np.maximum(divisor, np.finfo(float).tiny)
        return self._phases.warmup_s + times


class _ExponentialGaps:
    cv = 1.0

    def __init__(self, rng: Rng) -> None:
        self._rng = rng

    def first(self) -> float:
        return float(self._rng.standard_exponential())

    def draw(self, count: int) -> NDArray[np.float64]:
        return self._rng.standard_exponential(count)


class _BenchServingGaps(_ExponentialGaps):
    """One request at once, then one after each gap (sglang/benchmark/serving.py, get_request)."""

    def first(self) -> float:
        return 0.0


class _GammaGaps:
    """Gaps of mean 1. The first is what is left, at a random moment, of the gap it falls into."""

    def __init__(self, cv: float, rng: Rng) -> None:
        self.cv = cv
        self._shape = 1 / cv**2
        self._rng = rng

    def first(self) -> float:
        # A random moment meets a gap in proportion to its length: gamma of one more shape.
        met = self._rng.gamma(self._shape + 1, 1 / self._shape)
        return float(met * self._rng.random())

    def draw(self, count: int) -> NDArray[np.float64]:
        return self._rng.gamma(self._shape, 1 / self._shape, count)


def _renew(gaps: _ExponentialGaps | _GammaGaps, total: float) -> NDArray[np.float64]:
    """Arrivals of a renewal process from 0 up to `total`."""
    chunks = [np.array([gaps.first()])]
    for _ in range(MAX_DRAWS):
        left = total - float(chunks[-1][-1])
        if left <= 0:
            break
        count = math.ceil(left + 3 * gaps.cv * math.sqrt(left) + 16)
        chunks.append(chunks[-1][-1] + np.cumsum(gaps.draw(count)))
    else:
        raise ConfigError(
            f"workload arrivals.cv={gaps.cv:g}: {MAX_DRAWS} draws did not fill the schedule; "
            "lower the cv"
        )
    units: NDArray[np.float64] = np.concatenate(chunks)
    return units[units < total]
