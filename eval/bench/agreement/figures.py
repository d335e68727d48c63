"""How far simulated points lie from live ones: figures that are the worst point, not a mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from bana.eval.bench.slo.points import PointSeen
from bana.eval.bench.slo.settings import BUDGET
from bana.slo.figures import Aim, Better, Figure, judge_figure

ATTAINMENT_AIM = Aim(0.1, Better.LOWER)


class Compared(msgspec.Struct, frozen=True):
    """One seed at one load, live and simulated; `load` is a multiple of what it carries."""

    seed: int
    load: float
    live: PointSeen
    simulated: PointSeen

    @property
    def attainment_error(self) -> float:
        """The absolute difference."""
        return abs(self.simulated.attainment - self.live.attainment)

    @property
    def ttft_error(self) -> float | None:
        """The difference of mean TTFTs over the live one; None where one of them has none."""
        live_s, simulated_s = self.live.ttft_mean_s, self.simulated.ttft_mean_s
        return None if not live_s or simulated_s is None else abs(simulated_s - live_s) / live_s

    def describe(self) -> dict[str, object]:
        """The point as a reader of the report sees it."""
        return {
            "seed": self.seed,
            "load": round(self.load, 3),
            "rate_rps": round(self.live.rate_rps, 4),
            "requests": int(self.live.offered),
            "attainment": _pair(self.live.attainment, self.simulated.attainment),
            "ttft_mean_s": _pair(self.live.ttft_mean_s, self.simulated.ttft_mean_s),
            "ttft_p99_s": _pair(self.live.ttft_p99_s, self.simulated.ttft_p99_s),
            "missed_ttft": _pair(self.live.missed_ttft, self.simulated.missed_ttft),
            "missed_tpot": _pair(self.live.missed_tpot, self.simulated.missed_tpot),
            "is_valid": bool(self.live.is_valid),
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
    valid = [point for point in points if point.live.is_valid]
    attainment = [p.attainment_error for p in valid if judged.holds(p.live.attainment)]
    if attainment:
        aim = ATTAINMENT_AIM if side == BUDGET else None
        yield f"live_vs_sim_attainment_error[{row}]", _worst(attainment, "share", aim)
    ttft = [error for error in (point.ttft_error for point in valid) if error is not None]
    if ttft:
        yield f"live_vs_sim_ttft_error[{row}]", _worst(ttft, "ratio", None)


def _worst(errors: Sequence[float], unit: str, aim: Aim | None) -> Figure:
    """The worst point, with the best one beside it."""
    return judge_figure(max(errors), min(errors), max(errors), unit, aim)


def _pair(live: float | None, simulated: float | None) -> dict[str, float | None]:
    return {"live": _round(live), "simulated": _round(simulated)}


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
