"""One independent random stream for each purpose, so that changing one shifts no other."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from bana.slo.errors import ConfigError

MAX_LEGACY_SEED = 2**32 - 1


class Purpose(StrEnum):
    """What randomness is needed for. The order is part of every seed's meaning: append only."""

    ARRIVALS = "arrivals"
    TURNS = "turns"
    THINK = "think"
    INPUT = "input"
    NEW_INPUT = "new input"
    OUTPUT = "output"
    EMPIRICAL = "empirical"
    FAMILY_MEMBERS = "family members"
    FAMILY_CHOICE = "family choice"
    FILE = "file"
    CONTENT = "content"
    CLASSES = "classes"
    CANCELLED = "cancelled"
    CANCEL_TIMES = "cancel times"


class Seeds:
    """The streams of one seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        children = np.random.SeedSequence(seed).spawn(len(Purpose))
        self._children = dict(zip(Purpose, children, strict=True))

    def generator(self, purpose: Purpose) -> np.random.Generator:
        """A generator at the start of the stream of `purpose`."""
        return np.random.Generator(np.random.PCG64(self._children[purpose]))

    def legacy_generator(self) -> np.random.RandomState:
        """What programs draw from that call `numpy.random.seed` with this seed."""
        if self._seed > MAX_LEGACY_SEED:
            raise ConfigError(
                f"seed {self._seed}: arrivals.kind 'bench_serving' takes 0 to {MAX_LEGACY_SEED}, "
                "and each rate of a grid has a longer seed; give --seed, and --rate for --rates"
            )
        return np.random.RandomState(self._seed)

    def key(self, purpose: Purpose) -> int:
        """64 bits that `token_runs` derives keys from."""
        return int(self._children[purpose].generate_state(1, np.uint64)[0])
