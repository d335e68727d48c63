"""How far simulated points lie from live ones: figures that are the worst point, not a mean."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

import msgspec

from bana.eval.bench.slo.points import PointSeen
from bana.eval.bench.slo.settings import BUDGET
from bana.slo.figures import Aim, Better, Figure, judge_figure

ATTAINMENT_AIM = Aim(0.1, Better.LOWER)
TOLD = ("attainment", "ttft_mean_s", "ttft_p99_s", "missed_ttft", "missed_tpot")


class Pair(msgspec.Struct, frozen=True):
    """The same requests live and simulated, on a machine that takes `pace` times as long as when
    the twin was fitted.
    """

    live: PointSeen
    simulated: PointSeen
    pace: float


class Compared(msgspec.Struct, frozen=True):
    """One seed at one load, a few times over; `load` is a multiple of what it carries."""

    seed: int
    load: float
    pairs: tuple[Pair, ...]

    @property
    def is_valid(self) -> bool:
        """Whether every live run proves something."""
        return all(pair.live.is_valid for pair in self.pairs)

    @property
    def live_attainment(self) -> float:
        """The mean of the live runs."""
        return statistics.fmean(pair.live.attainment for pair in self.pairs)

    @property
    def attainment_error(self) -> float:
        """The absolute difference of the means."""
        simulated = statistics.fmean(pair.simulated.attainment for pair in self.pairs)
        return abs(simulated - self.live_attainment)

    @property
    def live_spread(self) -> float:
        """How far the live runs lie from each other."""
        seen = [pair.live.attainment for pair in self.pairs]
        return max(seen) - min(seen)

    @property
    def ttft_error(self) -> float | None:
        """The difference of mean TTFTs over the live one; None where one of them has none."""
        live_s = _mean([pair.live.ttft_mean_s for pair in self.pairs])
        simulated_s = _mean([pair.simulated.ttft_mean_s for pair in self.pairs])
        return None if not live_s or simulated_s is None else abs(simulated_s - live_s) / live_s

    def describe(self) -> dict[str, object]:
        """The point as a reader of the report sees it, run by run."""
        live = [pair.live for pair in self.pairs]
        simulated = [pair.simulated for pair in self.pairs]
        told = {
            name: {"live": _list(live, name), "simulated": _list(simulated, name)} for name in TOLD
        }
        return {
            "seed": self.seed,
            "load": round(self.load, 3),
            "rate_rps": round(live[0].rate_rps, 4),
            "requests": int(live[0].offered),
            "pace": [round(pair.pace, 3) for pair in self.pairs],
            **told,
            "is_valid": self.is_valid,
        }


class Range(msgspec.Struct, frozen=True):
    """The live attainments at which attainment is judged, both ends included."""

    low: float
    high: float

    def holds(self, attainment: float) -> bool:
        """Whether a point of that attainment is judged."""
        return self.low <= attainment <= self.high


def list_figures(
    workload: str, side: str, points: Sequence[Compared], judged: Range
) -> Iterator[tuple[str, Figure]]:
    """The figures of one side; none without a point that may be judged.

    A point at which the client was late twice proves nothing and counts nowhere.
    """
    row = workload if side == BUDGET else f"{workload},{side}"
    valid = [point for point in points if point.is_valid]
    near = [point for point in valid if judged.holds(point.live_attainment)]
    if near:
        aim = ATTAINMENT_AIM if side == BUDGET else None
        errors = [point.attainment_error for point in near]
        yield f"live_vs_sim_attainment_error[{row}]", _worst(errors, "share", aim)
        spreads = [point.live_spread for point in near]
        yield f"live_vs_live_attainment_error[{row}]", _worst(spreads, "share", None)
    ttft = [error for error in (point.ttft_error for point in valid) if error is not None]
    if ttft:
        yield f"live_vs_sim_ttft_error[{row}]", _worst(ttft, "ratio", None)


def _worst(errors: Sequence[float], unit: str, aim: Aim | None) -> Figure:
    """The worst point, with the best one beside it."""
    return judge_figure(max(errors), min(errors), max(errors), unit, aim)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def _list(points: Sequence[PointSeen], name: str) -> list[float | None]:
    values = [getattr(point, name) for point in points]
    return [None if value is None else round(value, 4) for value in values]
