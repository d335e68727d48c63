"""What several runs say together: points of a load grid, and the same runs of two sides."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bana.eval.capacity import take_point
from bana.eval.comparing import ComparedRuns, compare_runs
from bana.eval.live.measure import Point
from bana.eval.report.records import StoredRun
from bana.eval.runs import RunRecord
from bana.eval.summary import LoadPoint


class Measured(msgspec.Struct, frozen=True):
    """A point and the run that was made of it."""

    point: Point
    stored: StoredRun

    @property
    def is_proof(self) -> bool:
        """Whether the run shows anything about the server."""
        run = self.stored.record.run
        return self.stored.summary.validity.is_valid and not run.is_interrupted


class Compared(msgspec.Struct, frozen=True):
    """A later side over the first one."""

    side: str
    baseline: str
    runs: ComparedRuns


def merge_points(measured: Sequence[Measured]) -> list[LoadPoint]:
    """One point for each rate that was asked for, over all of its seeds.

    The offered rate is the mean of those that came about, attainment is met over offered, and the
    p99 TTFT the worst; runs that prove nothing are points of their own.
    """
    by_rate: dict[float | None, list[StoredRun]] = {}
    apart = []
    for one in measured:
        if one.is_proof:
            by_rate.setdefault(one.point.rate_rps, []).append(one.stored)
        else:
            apart.append(take_point(one.stored.summary))
    return [*map(_merge, by_rate.values()), *apart]


def compare_sides(measured: Sequence[Measured], baseline: str, side: str) -> Compared | None:
    """`side` over `baseline` in the runs that both have; None where there are none."""
    first, second = (_proofs_of(measured, name) for name in (baseline, side))
    shared = first.keys() & second.keys()
    if not shared:
        return None
    of_both = [[runs[seed] for seed in sorted(shared)] for runs in (first, second)]
    return Compared(side, baseline, compare_runs(of_both[0], of_both[1]))


def _proofs_of(measured: Sequence[Measured], side: str) -> dict[int, RunRecord]:
    """The runs of a side by the seed of their workload, which differs from rate to rate."""
    records = (m.stored.record for m in measured if m.point.side == side and m.is_proof)
    return {record.about.seed: record for record in records}


def _merge(runs: Sequence[StoredRun]) -> LoadPoint:
    points = [take_point(stored.summary) for stored in runs]
    groups = [stored.summary.overall for stored in runs]
    offered = sum(group.offered for group in groups)
    p99s_s = [point.p99_ttft_s for point in points if point.p99_ttft_s is not None]
    return LoadPoint(
        offered_rps=sum(point.offered_rps for point in points) / len(points),
        attainment=sum(group.met for group in groups) / offered if offered else 0.0,
        p99_ttft_s=max(p99s_s) if len(p99s_s) == len(points) else None,
    )
