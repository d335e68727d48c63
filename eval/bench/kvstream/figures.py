"""From rounds to figures and to what the report tells besides (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from bana.eval.bench.kvstream.rounds import count_differing
from bana.eval.bench.kvstream.settings import PAGE_TOKENS
from bana.eval.bench.kvstream.steps import NO_STORE, PLAIN
from bana.eval.bench.pairs import Pair, figure_level, figure_range, figure_ratio
from bana.eval.bench.trials import Values
from bana.slo.figures import Figure

# The rounds of every step in the same order; round n of each asked the same.
Rounds = Mapping[str, Sequence[Values]]
THROUGHPUT = "requests_per_s"
TTFT = "ttft_mean_s"
EVENTS = ("late_holds", "wants_no_room", "wants_late", "wants_failed")


def judge_steps(rounds: Rounds, seed: int) -> dict[str, Figure]:
    """Every step over the plain store, and over the step before it."""
    figures: dict[str, Figure] = {}
    for name in (name for name in rounds if name != PLAIN):
        figures |= _compare(rounds, name, PLAIN, seed, name)
    for before, name in pairwise(rounds):
        figures |= _compare(rounds, name, before, seed, f"{name} over {before}")
    for name, taken in rounds.items():
        levels = {THROUGHPUT: "requests/s", TTFT: "s"}
        for metric, unit in levels.items():
            level = figure_level([values[metric] for values in taken], seed, unit)
            figures[f"kvstream_{metric}[{name}]"] = level
        if name != NO_STORE:
            figures[f"kvstream_differing_answers[{name}]"] = figure_range(
                _count_all(taken, rounds[NO_STORE]), "answers a round"
            )
    return figures


def describe_rounds(rounds: Rounds) -> dict[str, object]:
    """Where the pages of each round came from, and went to, by step."""
    return {name: _describe(taken, rounds[NO_STORE]) for name, taken in rounds.items()}


def _compare(rounds: Rounds, name: str, base: str, seed: int, row: str) -> dict[str, Figure]:
    both = list(zip(rounds[name], rounds[base], strict=True))
    faster = [Pair(dict(ours), dict(theirs)) for ours, theirs in both]
    sooner = [Pair(dict(theirs), dict(ours)) for ours, theirs in both]
    return {
        f"kvstream_throughput[{row}]": figure_ratio(faster, THROUGHPUT, seed, None),
        f"kvstream_ttft[{row}]": figure_ratio(sooner, TTFT, seed, None),
    }


def _count_all(taken: Sequence[Values], baseline: Sequence[Values]) -> list[float]:
    return [float(count_differing(*both)) for both in zip(taken, baseline, strict=True)]


def _describe(taken: Sequence[Values], baseline: Sequence[Values]) -> dict[str, object]:
    def gather(suffix: str, unit: int) -> dict[str, list[int]]:
        names = [name for name in taken[0] if name.endswith(suffix)]
        return {
            name.removesuffix(suffix): [int(values[name]) // unit for values in taken]
            for name in names
        }

    return {
        "pages_from": gather("_tokens", PAGE_TOKENS),
        "pages_written": gather("_written", 1),
        "pages_crowded_out": gather("_crowded_out", 1),
        "events": {name: [int(v[name]) for v in taken] for name in EVENTS if name in taken[0]},
        "differing_answers": _count_all(taken, baseline),
    }
