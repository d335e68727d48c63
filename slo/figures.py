"""The record every benchmark writes: figures with their spread, aim and settings."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec


class Better(StrEnum):
    """Which direction an aim asks for."""

    HIGHER = "higher"
    LOWER = "lower"


class Judged(StrEnum):
    """Which number is held against the aim: the pessimistic bound, or the median."""

    BOUND = "bound"
    MEDIAN = "median"


class Aim(msgspec.Struct, frozen=True):
    """What a figure should reach."""

    target: float
    better: Better = Better.HIGHER
    judged: Judged = Judged.BOUND


class Figure(msgspec.Struct, frozen=True):
    """One figure: `value` with its spread `low`..`high` over repetitions.

    `met` is None where there is no aim, or where the run was a smoke whose figures claim nothing.
    """

    value: float
    low: float
    high: float
    unit: str
    aim: str | None = None
    met: bool | None = None


class BenchReport(msgspec.Struct, frozen=True):
    """What `bana eval bench NAME --json FILE` writes."""

    machine: Mapping[str, object]
    commit: str
    seed: int
    settings: Mapping[str, object]
    figures: Mapping[str, Figure]


def judge_figure(value: float, low: float, high: float, unit: str, aim: Aim | None) -> Figure:
    """A figure held against its aim: >= on `low` or <= on `high`, unless judged by the median."""
    if aim is None:
        return Figure(value=value, low=low, high=high, unit=unit)
    is_higher = aim.better is Better.HIGHER
    bound = low if is_higher else high
    held = value if aim.judged is Judged.MEDIAN else bound
    met = held >= aim.target if is_higher else held <= aim.target
    sign = ">=" if is_higher else "<="
    text = f"{sign} {aim.target:g}" + (" (median)" if aim.judged is Judged.MEDIAN else "")
    return Figure(value=value, low=low, high=high, unit=unit, aim=text, met=met)
