"""Distributions and series thinned to a fixed number of points, whatever a run's length."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MAX_BINS = 150
BIN_WIDTHS_S = (1, 2, 5, 10, 15, 30, 60)
# Evenly through the body, closer where the promises are decided.
ECDF_SHARES = (*np.linspace(0.0, 0.98, 50).tolist(), 0.985, 0.99, 0.9925, 0.995, 0.998, 0.999, 1.0)


class Curve(msgspec.Struct, frozen=True):
    """Points to be joined, `ys[i]` over `xs[i]`."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]


class Bins(msgspec.Struct, frozen=True):
    """Equal stretches of time that cover a run."""

    start_s: float
    width_s: float
    count: int

    @property
    def end_s(self) -> float:
        return self.start_s + self.width_s * self.count

    @property
    def edges_s(self) -> tuple[float, ...]:
        """Where bins begin, and where the last one ends."""
        return tuple(self.start_s + self.width_s * i for i in range(self.count + 1))

    def place(self, times_s: Iterable[float]) -> npt.NDArray[np.int64]:
        """The bin of each time; what lies outside is in the nearest one."""
        offsets = (np.array(list(times_s), dtype=np.float64) - self.start_s) / self.width_s
        return np.clip(np.floor(offsets), 0, self.count - 1).astype(np.int64)


def plan_bins(start_s: float, end_s: float) -> Bins:
    """The finest of the usual widths that covers the span in at most `MAX_BINS` bins."""
    span_s = max(end_s - start_s, 1e-9)
    widths = (w for w in BIN_WIDTHS_S if math.ceil(span_s / w) <= MAX_BINS)
    width_s = next(widths, math.ceil(span_s / MAX_BINS / 60) * 60)
    return Bins(start_s, width_s, max(1, math.ceil(span_s / width_s)))


def trace_ecdf(values: Iterable[float]) -> Curve | None:
    """The share of the values that are at most x, None without values."""
    known = np.sort(np.array(list(values), dtype=np.float64))
    if known.size == 0:
        return None
    shares = np.array(ECDF_SHARES) if known.size > len(ECDF_SHARES) else _every_rank(known.size)
    ranks = np.ceil(shares * known.size).astype(np.int64) - 1
    xs = known[np.clip(ranks, 0, known.size - 1)]
    return Curve(tuple(xs.tolist()), tuple(shares.tolist()))


def _every_rank(size: int) -> Floats:
    return np.arange(size + 1, dtype=np.float64) / size


def count_bins(times_s: Sequence[float], bins: Bins) -> tuple[int, ...]:
    """How many of the times lie in each bin."""
    counted = np.bincount(bins.place(times_s), minlength=bins.count) if times_s else ()
    return tuple(int(n) for n in counted) or (0,) * bins.count


def summarise_bins(times_s: Sequence[float], values: Sequence[float], bins: Bins) -> BinSummary:
    """Median and largest value of each bin that has one."""
    placed = bins.place(times_s)
    array = np.array(values, dtype=np.float64)
    present = [int(b) for b in np.unique(placed)]
    groups = [array[placed == b] for b in present]
    return BinSummary(
        middles_s=tuple(bins.start_s + bins.width_s * (b + 0.5) for b in present),
        medians=tuple(float(np.median(g)) for g in groups),
        largest=tuple(float(g.max()) for g in groups),
    )


class BinSummary(msgspec.Struct, frozen=True):
    """The bins that hold something, by their middles."""

    middles_s: tuple[float, ...]
    medians: tuple[float, ...]
    largest: tuple[float, ...]
