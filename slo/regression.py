"""Nonnegative least squares on relative errors, drawn towards what is believed already.

Every observation is divided by the time that was expected of it, so that a short step counts as
much as a long one and an equation reads `row · coefficients = measured / expected`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# A coefficient moves as easily as its own size allows, or as this share of a step if it is smaller.
_FREE_SHARE = 0.1
# How much more easily all coefficients of a group change by one factor than each alone: another
# speed of the machine is likelier than another proportion.
_COMMON_EASE = 9.0
_ROUNDING = 1e-9
# Rounds that may exchange several coefficients at once, then those that exchange one.
_BLOCK_ROUNDS, _SINGLE_ROUNDS = 6, 64


class Equations:
    """Sums over relative observations, older ones decayed: Σ (row, ratio, 1)·(row, ratio, 1)'."""

    def __init__(self, features: int) -> None:
        self._features = features
        self._moments = np.zeros((features + 2, features + 2))

    @classmethod
    def join(cls, parts: Iterable[Equations], features: int) -> Equations:
        """All of `parts` together."""
        total = cls(features)
        for part in parts:
            total._moments += part._moments
        return total

    @property
    def hessian(self) -> Floats:
        """Σ row·row'."""
        return self._moments[: self._features, : self._features]

    @property
    def target(self) -> Floats:
        """Σ ratio·row."""
        return self._moments[self._features, : self._features]

    @property
    def weight(self) -> float:
        """How many observations these are, decay included."""
        return float(self._moments[-1, -1])

    @property
    def totals(self) -> Floats:
        """Σ row."""
        return self._moments[-1, : self._features]

    def add(self, rows: Floats, ratios: Floats, keep: float = 1.0) -> None:
        """Add `row · coefficients = ratio` for each of `rows`; each leaves `keep` of all before."""
        count = len(ratios)
        lines = np.ones((count, self._features + 2))
        lines[:, : self._features] = rows
        lines[:, self._features] = ratios
        self.scale(keep**count)
        decayed = lines.T * keep ** np.arange(count - 1, -1, -1)
        self._moments += decayed @ lines

    def scale(self, keep: float) -> None:
        """Let everything so far count `keep` times."""
        self._moments *= keep

    def limit(self, weight: float) -> Equations:
        """The same, counting as at most `weight` observations."""
        limited = Equations.join((self,), self._features)
        limited.scale(min(1.0, weight / self.weight) if self.weight > 0 else 1.0)
        return limited

    def estimate_error(self, coefficients: Floats) -> float:
        """The root mean square of the relative errors that `coefficients` leave."""
        line = np.append(coefficients, (-1.0, 0.0))
        square = float(line @ self._moments @ line)
        return math.sqrt(max(square, 0.0) / self.weight) if self.weight > 0 else 0.0


def clip_ratios(ratios: Floats, guard: float) -> Floats:
    """`ratios` as far as a single measurement may count."""
    clipped: Floats = np.minimum(np.maximum(ratios, 1.0 / (1.0 + guard)), 1.0 + guard)
    return clipped


def refit(
    believed: Floats, equations: Equations, groups: tuple[slice, ...], inertia: float
) -> Floats:
    """Coefficients >= 0 that suit `equations` and stay near `believed` where those are silent.

    To change one coefficient by its own size costs as much as `inertia` observations that are
    twice what was expected; to change a whole group by one factor costs less. O(features^3).
    """
    scale = _scale(believed, equations)
    start = believed / scale
    hessian = equations.hessian * (scale[:, np.newaxis] * scale)
    pull = inertia * _stiffness(start, groups)
    # Against rounding, where observations outweigh the pull and still leave a direction open.
    pull += np.diag(_ROUNDING * hessian.diagonal())
    return solve_nonnegative(hessian + pull, equations.target * scale + pull @ start) * scale


def solve_nonnegative(hessian: Floats, target: Floats) -> Floats:
    """The x >= 0 that minimises x·H·x / 2 - target·x for positive definite H.

    Block principal pivoting, then Murty's single pivots, which end (Portugal, Júdice and Vicente,
    Mathematics of Computation 63, 1994).
    """
    x = np.zeros(len(target))
    x[:] = np.linalg.solve(hessian, target)
    passive = np.ones(len(target), dtype=bool)
    tolerance = 1e-12 * float(np.abs(target).max())
    for turn in range(_BLOCK_ROUNDS + _SINGLE_ROUNDS):
        gain = target - hessian @ x
        wrong = np.flatnonzero(np.where(passive, x < 0, gain > tolerance))
        if not wrong.size:
            break
        exchanged = wrong if turn < _BLOCK_ROUNDS else wrong[-1:]
        passive[exchanged] ^= True
        x[:] = 0.0
        x[passive] = np.linalg.solve(hessian[passive][:, passive], target[passive])
    return np.maximum(x, 0.0)


def _scale(believed: Floats, equations: Equations) -> Floats:
    """The size by which each coefficient is measured: its own, or a small share of a step."""
    square = equations.hessian.diagonal()
    # Σ row / Σ row^2 is one over the usual size of a feature where it takes part.
    floor = _FREE_SHARE * equations.totals / np.maximum(square, np.finfo(np.float64).tiny)
    scale = np.hypot(believed, floor)
    return np.where(scale > 0, scale, 1.0)


def _stiffness(start: Floats, groups: tuple[slice, ...]) -> Floats:
    """The inverse of I + ease·g·g' over each group g (Sherman-Morrison)."""
    stiffness = np.eye(len(start))
    for group in groups:
        part = start[group]
        ease = _COMMON_EASE / (1.0 + _COMMON_EASE * float(part @ part))
        stiffness[group, group] -= (ease * part)[:, np.newaxis] * part
    return stiffness
