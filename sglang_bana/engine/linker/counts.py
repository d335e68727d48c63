"""What became of pages and prompt tokens in one engine, in numbers that only grow."""

from __future__ import annotations

import dataclasses

from bana.radix_global.pages import MAX_TIERS


@dataclasses.dataclass
class LinkerCounts:
    """Each number is written by one thread; any may read.

    `wanted_pages` were asked for, `missed_pages` of them nobody had, `late_holds` are requests
    that went on before their pages were there. `failed_loads` are batches, `recomputed` the
    requests in them. `saved_pages` went into the store, `known_pages` were there already,
    `refused_saves` and `failed_saves` are pieces of the tree, `spilled` half-computed prompts that
    lost their place on the device. `parted` prompts began to be computed while their ends were
    fetched, `met` of them got there. `epochs` counts changes of weights, `faults` what went wrong
    in our own code.
    """

    wanted_pages: int = 0
    missed_pages: int = 0
    late_holds: int = 0
    failed_loads: int = 0
    recomputed: int = 0
    saved_pages: int = 0
    known_pages: int = 0
    refused_saves: int = 0
    failed_saves: int = 0
    spilled: int = 0
    parted: int = 0
    met: int = 0
    epochs: int = 0
    faults: int = 0


class TokenSources:
    """Where prompt tokens came from: each token of an admitted prompt has exactly one source."""

    def __init__(self) -> None:
        self.device = 0
        self.computed = 0
        self.places = [0] * (1 + MAX_TIERS)

    def add(self, prompt_tokens: int, device_tokens: int, restored: tuple[int, ...]) -> None:
        """One prompt was admitted; `restored` counts tokens by the place they came from."""
        for place, tokens in enumerate(restored):
            self.places[place] += tokens
        self.device += device_tokens
        self.computed += prompt_tokens - device_tokens - sum(restored)

    def report(self) -> dict[str, int]:
        """Tokens by source: device, computed, arena, tier_1 and on where they gave any."""
        tiers = {f"tier_{place}": n for place, n in enumerate(self.places) if place and n}
        named = {"device": self.device, "computed": self.computed, "arena": self.places[0]}
        return named | tiers
