"""Requests by class and by prompt length, and what each such group amounts to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from bana.eval.distributions import describe_latencies
from bana.eval.judging import Judged, list_limits
from bana.eval.requests import Ending
from bana.eval.resampling import (
    Floats,
    divide,
    draw_weights,
    place_times,
    spread_known,
    total_segments,
)
from bana.eval.runs import Window
from bana.eval.summary import Dimension, Group, Spread

QUARTILES = 4


class GroupFrame(msgspec.Struct, frozen=True):
    """What all groups of a run share; `weights` are the draws of its segments."""

    window: Window
    weights: Floats


def make_frame(window: Window) -> GroupFrame:
    """The frame of a run, with the same draws for every run."""
    return GroupFrame(window, draw_weights())


def summarise_group(name: str, judged: Sequence[Judged], frame: GroupFrame) -> Group:
    """One group. Without any request every figure of it is 0."""
    lengths = [j.observed.prompt_tokens for j in judged]
    endings = Counter(j.observed.ending for j in judged)
    met = sum(j.is_met for j in judged)
    return Group(
        name=name,
        offered=len(judged),
        met=met,
        attainment=_spread_attainment(judged, frame),
        goodput_rps=_spread_goodput(judged, frame),
        endings={ending: endings[ending] for ending in Ending},
        missed=count_missed(judged),
        latencies=describe_latencies([j.observed for j in judged]),
        prompt_tokens_low=min(lengths, default=0),
        prompt_tokens_high=max(lengths, default=0),
    )


def count_missed(judged: Sequence[Judged]) -> Mapping[Dimension, int]:
    """How many requests missed what; a limit that none of them has is left out."""
    limited = frozenset({Dimension.NO_ANSWER}).union(*(list_limits(j.observed) for j in judged))
    counts = Counter(dimension for j in judged for dimension in j.missed)
    return {dimension: counts[dimension] for dimension in Dimension if dimension in limited}


def group_classes(judged: Sequence[Judged], frame: GroupFrame) -> tuple[Group, ...]:
    """One group a class, by name."""
    classes: dict[str, list[Judged]] = {}
    for j in judged:
        classes.setdefault(j.observed.slo_class, []).append(j)
    return tuple(summarise_group(name, classes[name], frame) for name in sorted(classes))


def group_quartiles(judged: Sequence[Judged], frame: GroupFrame) -> tuple[Group, ...]:
    """Up to four groups of rising prompt length; equal lengths are never parted.

    The k-th quartile ends with the length of the request that k quarters of all are not longer
    than. Where these ends coincide, so do the quartiles.
    """
    ends = _find_ends([j.observed.prompt_tokens for j in judged])
    groups: list[list[Judged]] = [[] for _ in ends]
    for j in judged:
        groups[int(np.searchsorted(ends, j.observed.prompt_tokens))].append(j)
    return tuple(summarise_group(_name_lengths(group), group, frame) for group in groups)


def measure_jain(groups: Sequence[Group]) -> float | None:
    """Jain's index of the groups' attainments, 1/n (one has all) to 1 (all alike).

    None for fewer than two groups, or where none attains anything. Source: Jain, Chiu and Hawe
    1984.
    """
    shares = np.array([group.attainment.value for group in groups])
    if shares.size < 2 or not shares.any():
        return None
    # Only the proportions count, and the square of a tiny share would vanish.
    shares = shares / shares.max()
    return float(shares.sum() ** 2 / (shares.size * (shares**2).sum()))


def find_worst(classes: Sequence[Group]) -> str | None:
    """The class with the lowest attainment, of equals the larger; None where there is only one."""
    if len(classes) < 2:
        return None
    return min(classes, key=lambda g: (g.attainment.value, -g.offered, g.name)).name


def _spread_attainment(judged: Sequence[Judged], frame: GroupFrame) -> Spread:
    if not judged:
        return Spread(0.0, 0.0, 0.0)
    met = frame.weights @ _total_met(judged, frame.window)
    places = place_times((j.observed.due_s for j in judged), frame.window)
    offered = frame.weights @ total_segments(places, (1.0 for _ in judged))
    value = sum(j.is_met for j in judged) / len(judged)
    return spread_known(value, divide(met, offered))


def _spread_goodput(judged: Sequence[Judged], frame: GroupFrame) -> Spread:
    met = frame.weights @ _total_met(judged, frame.window)
    value = sum(j.is_met for j in judged) / frame.window.length_s
    return spread_known(value, met / frame.window.length_s)


def _total_met(judged: Sequence[Judged], window: Window) -> Floats:
    places = place_times((j.observed.due_s for j in judged), window)
    return total_segments(places, (float(j.is_met) for j in judged))


def _find_ends(lengths: Sequence[int]) -> list[int]:
    ordered = sorted(lengths)
    ranks = (-(-len(ordered) * k // QUARTILES) - 1 for k in range(1, QUARTILES + 1))
    return sorted({ordered[rank] for rank in ranks}) if ordered else []


def _name_lengths(group: Sequence[Judged]) -> str:
    lengths = [j.observed.prompt_tokens for j in group]
    low, high = min(lengths), max(lengths)
    return f"prompt {low}" if low == high else f"prompt {low}-{high}"
