"""What a process apart has measured, as the trial log keeps it and as figures are drawn from it.

{case: record of lists} ◀─split─ {"case/list/index": value} ─pair─▶ {case: pairs}
                        ─join──▶
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from bana.eval.bench.pairs import Pair
from bana.eval.bench.trials import Values

S = TypeVar("S", bound=msgspec.Struct)


def join_samples(samples: Mapping[str, msgspec.Struct]) -> Values:
    """Each case's record, all of whose fields are lists of numbers, as one flat record."""
    return {
        f"{case}/{run}/{index}": value
        for case, taken in samples.items()
        for run, values in msgspec.structs.asdict(taken).items()
        for index, value in enumerate(values)
    }


def split_samples(values: Values, kind: type[S]) -> dict[str, S]:
    """The records of that kind, by case: the inverse of `join_samples`."""
    cases: dict[str, dict[str, list[float]]] = {}
    for name, value in values.items():
        case, run, _ = name.rsplit("/", 2)
        cases.setdefault(case, {}).setdefault(run, []).append(value)
    return {case: kind(**runs) for case, runs in cases.items()}


def pair_samples(values: Values, kind: type[S], metric: str) -> dict[str, list[Pair]]:
    """The pairs of each case, of a kind with two fields: runs of the first beside the second."""
    return {
        case: [
            Pair({metric: first}, {metric: second})
            for first, second in zip(*msgspec.structs.astuple(taken), strict=True)
        ]
        for case, taken in split_samples(values, kind).items()
    }
