"""How evenly the server said its instances were loaded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

from bana.eval.requests import ServerSample
from bana.eval.runs import Window
from bana.eval.summary import Balance

BALANCED = 1.0


class _Moment(msgspec.Struct, frozen=True):
    """What one sample says, and for how long it stands; `loads` by instance."""

    held_s: float
    running: float
    waiting: float
    loads: tuple[float, ...]


def measure_balance(samples: Sequence[ServerSample], window: Window) -> Balance | None:
    """The window's averages over time; None where the server told nothing in it.

    A sample stands until the next one, the last until the window ends. Moments without any load
    have no ratio of largest to mean instance; a server that was always idle counts as balanced.
    """
    told = sorted((s for s in samples if window.holds(s.at_s)), key=lambda s: s.at_s)
    told = [s for s in told if s.running or s.waiting]
    if not told:
        return None
    ends_s = [*(later.at_s for _, later in pairwise(told)), window.end_s]
    moments = [_read(s, end_s) for s, end_s in zip(told, ends_s, strict=True)]
    return Balance(
        instances=len({name for s in told for name in (*s.running, *s.waiting)}),
        mean_running=_average([m.running for m in moments], moments),
        mean_waiting=_average([m.waiting for m in moments], moments),
        largest_waiting=max(m.waiting for m in moments),
        max_over_mean=_compare_loads([m for m in moments if any(m.loads)]),
    )


def _read(sample: ServerSample, end_s: float) -> _Moment:
    names = sorted({*sample.running, *sample.waiting})
    return _Moment(
        held_s=end_s - sample.at_s,
        running=float(sum(sample.running.values())),
        waiting=float(sum(sample.waiting.values())),
        loads=tuple(sample.running.get(n, 0.0) + sample.waiting.get(n, 0.0) for n in names),
    )


def _compare_loads(loaded: Sequence[_Moment]) -> float:
    if not loaded:
        return BALANCED
    return _average([max(m.loads) * len(m.loads) / sum(m.loads) for m in loaded], loaded)


def _average(values: Sequence[float], moments: Sequence[_Moment]) -> float:
    held_s = [m.held_s for m in moments]
    # Samples of one instant weigh alike.
    return float(np.average(values, weights=held_s if sum(held_s) > 0 else None))
