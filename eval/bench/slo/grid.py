"""Which load is offered next, and to which sides: a grid that follows what was attained.

multiples of the capacity   0.75   1.0   1.33   1.8   2.4   ▸ more above, while a side holds
a side that falls below `give_up` ──────┘ is offered no higher load; one that misses the target at
its lowest load is offered lower ones. So each side brackets its max rate where that can be done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bana.slo.errors import ConfigError


class Grid(msgspec.Struct, frozen=True):
    """Rising loads as multiples of the capacity, and at most so many more at either end."""

    multiples: tuple[float, ...]
    target: float = 0.9
    give_up: float = 0.75
    more_below: int = 2
    more_above: int = 2

    def __post_init__(self) -> None:
        is_rising = list(self.multiples) == sorted(set(self.multiples))
        if len(self.multiples) < 2 or not is_rising or self.multiples[0] <= 0:
            raise ConfigError(f"grid multiples {self.multiples}: allowed are two or more, rising")

    @property
    def step(self) -> float:
        """The factor from one load beyond the grid to the next."""
        return self.multiples[-1] / self.multiples[-2]


class Tried(msgspec.Struct, frozen=True):
    """What one side attained at one load."""

    multiple: float
    attainment: float


class Round(msgspec.Struct, frozen=True):
    """A load and the sides that it is offered to."""

    multiple: float
    sides: tuple[str, ...]


def plan_round(tried: Mapping[str, Sequence[Tried]], grid: Grid) -> Round | None:
    """The lowest load that some side wants next, with all sides that want it; None at the end."""
    wanted = {side: plan_next(seen, grid) for side, seen in tried.items()}
    lowest = min((multiple for multiple in wanted.values() if multiple is not None), default=None)
    if lowest is None:
        return None
    return Round(lowest, tuple(side for side, multiple in wanted.items() if multiple == lowest))


def plan_next(tried: Sequence[Tried], grid: Grid) -> float | None:
    """The next load of one side: up the grid, then beyond the end that brackets nothing yet."""
    done = {one.multiple: one.attainment for one in tried}
    has_given_up = any(attainment < grid.give_up for attainment in done.values())
    left = [multiple for multiple in grid.multiples if multiple not in done]
    if left and not has_given_up:
        return left[0]
    lowest, highest = min(done), max(done)
    if done[lowest] < grid.target:
        is_left = sum(multiple < grid.multiples[0] for multiple in done) < grid.more_below
        return lowest / grid.step if is_left else None
    if done[highest] >= grid.target and not has_given_up:
        is_left = sum(multiple > grid.multiples[-1] for multiple in done) < grid.more_above
        return highest * grid.step if is_left else None
    return None


def take_turns(sides: Sequence[str], turn: int) -> list[str]:
    """The sides in their order, turned round every other time."""
    return list(sides) if turn % 2 == 0 else list(reversed(sides))
