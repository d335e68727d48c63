"""Two sides measured in pairs, and the figures that pairs give.

Order alternates AB, BA, AB … so that a drift of the machine favours neither side. Both runs of
a pair get the same seed, hence the same requests.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

import msgspec

from bana.eval.bench.trials import Values
from bana.slo.errors import ConfigError
from bana.slo.figures import Aim, Figure, judge_figure
from bana.slo.stats import Interval, bootstrap_median, bootstrap_paired


class PairPlan(msgspec.Struct, frozen=True):
    """What to compare: `first` over `second`, `pairs` times."""

    name: str
    first: str
    second: str
    pairs: int

    def __post_init__(self) -> None:
        if self.pairs < 1:
            raise ConfigError(f"{self.name}: pairs={self.pairs}, allowed: >= 1")
        if self.first == self.second:
            raise ConfigError(f"{self.name}: both sides are called {self.first!r}")


class Run(msgspec.Struct, frozen=True):
    """One run of one side, in pair `index`."""

    index: int
    side: str


class Pair(msgspec.Struct, frozen=True):
    """What both runs of one pair gave."""

    first: dict[str, float]
    second: dict[str, float]


MeasureRun = Callable[[Run], Values]


def plan_runs(plan: PairPlan) -> Iterator[tuple[Run, Run]]:
    """The runs of each pair in the order in which they are made."""
    for index in range(plan.pairs):
        first, second = Run(index, plan.first), Run(index, plan.second)
        yield (first, second) if index % 2 == 0 else (second, first)


def join_pair(plan: PairPlan, values: dict[str, Values]) -> dict[str, float]:
    """Both sides' values as one flat record `side.metric`, as the trial log keeps it."""
    sides = (plan.first, plan.second)
    return {f"{side}.{metric}": v for side in sides for metric, v in values[side].items()}


def split_pair(plan: PairPlan, flat: Values) -> Pair:
    """The inverse of `join_pair`."""

    def pick(side: str) -> dict[str, float]:
        head = f"{side}."
        return {name.removeprefix(head): v for name, v in flat.items() if name.startswith(head)}

    return Pair(pick(plan.first), pick(plan.second))


def figure_ratio(pairs: Sequence[Pair], metric: str, seed: int, aim: Aim | None) -> Figure:
    """Median of first over second, pair by pair, with its bootstrap interval."""
    above = [pair.first[metric] for pair in pairs]
    below = [pair.second[metric] for pair in pairs]
    return _judge(bootstrap_paired(above, below, seed), "ratio", aim)


def figure_difference(
    pairs: Sequence[Pair], metric: str, seed: int, unit: str, aim: Aim | None
) -> Figure:
    """Median of first minus second, pair by pair, with its bootstrap interval."""
    gaps = [pair.first[metric] - pair.second[metric] for pair in pairs]
    return _judge(bootstrap_median(gaps, seed), unit, aim)


def figure_level(values: Sequence[float], seed: int, unit: str, aim: Aim | None = None) -> Figure:
    """Median of one side's repetitions with its bootstrap interval."""
    return _judge(bootstrap_median(values, seed), unit, aim)


def figure_range(values: Sequence[float], unit: str, aim: Aim | None = None) -> Figure:
    """Median with the smallest and largest repetition: for counts that must hold every time."""
    spread = Interval(statistics.median(values), min(values), max(values))
    return _judge(spread, unit, aim)


def _judge(spread: Interval, unit: str, aim: Aim | None) -> Figure:
    return judge_figure(spread.value, spread.low, spread.high, unit, aim)
