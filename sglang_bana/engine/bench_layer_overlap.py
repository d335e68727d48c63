"""How much of a layer-wise load a forward pass hides: milliseconds of each alone, and of both.

`python -m sglang_bana.engine.bench_layer_overlap --json FILE [--rounds N] [--pages N]`

One torch thread. Where this process may use one core only, nothing is measured on two.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping

import msgspec

from bana.slo.errors import ConfigError
from sglang_bana.engine.bench_command import Say, run_command
from sglang_bana.engine.overlap_stand import (
    LoadShape,
    OverlapStand,
    Placement,
    open_overlap_stand,
)

# SmolLM2-135M, and a model of 8 billion parameters (Llama 3).
SHAPES = (LoadShape(30, 3, 64, pages=128), LoadShape(32, 8, 128, pages=64))
# How long the forward pass takes, in loads.
FORWARDS: Mapping[str, float] = {"equal": 1.0, "load is half": 2.0}
MAX_PAGES = 4_096


class OverlapSamples(msgspec.Struct, frozen=True):
    """One case: milliseconds of each run, round by round."""

    load_ms: list[float]
    forward_ms: list[float]
    both_ms: list[float]


class OverlapOptions(msgspec.Struct, frozen=True):
    """How often each case is timed, and how many pages are loaded: 0 for as many as a shape has."""

    rounds: int = 25
    pages: int = 0


def time_overlaps(options: OverlapOptions, say: Say) -> Mapping[str, OverlapSamples]:
    """All cases by name, as `PAGE_BYTES/FORWARD/PLACEMENT`."""
    if options.rounds < 1 or not 0 <= options.pages <= MAX_PAGES:
        raise ConfigError(
            f"cannot time {options.rounds} rounds with {options.pages} pages: rounds must be >= 1, "
            f"pages from 0 to {MAX_PAGES}"
        )
    samples = {}
    for shape in SHAPES:
        if options.pages:
            shape = msgspec.structs.replace(shape, pages=options.pages)
        for placement in list_placements(len(os.sched_getaffinity(0))):
            with open_overlap_stand(shape, placement) as stand:
                for name, share in FORWARDS.items():
                    stand.tune(share)
                    case = f"{shape.layout.page_bytes}/{name}/{placement}"
                    samples[case] = time_case(stand, options.rounds)
                    say(f"{case}: {options.rounds} rounds of {shape.pages} pages")
    return samples


def list_placements(cores: int) -> tuple[Placement, ...]:
    """Those that so many cores allow."""
    return tuple(Placement) if cores > 1 else (Placement.TOGETHER,)


def time_case(stand: OverlapStand, rounds: int) -> OverlapSamples:
    """Rounds of the three runs, each round begun with another one."""
    samples = OverlapSamples([], [], [])
    runs = (
        (stand.time_load_ms, samples.load_ms),
        (stand.time_forward_ms, samples.forward_ms),
        (stand.time_both_ms, samples.both_ms),
    )
    for number in range(rounds):
        first = number % len(runs)
        for run, times_ms in (*runs[first:], *runs[:first]):
            times_ms.append(run())
    return samples


def main() -> int:
    """Time as the command line says; 2 where it says something unusable, or nothing was timed."""
    parser = argparse.ArgumentParser(prog="bench_layer_overlap", description="loads behind layers")
    default = OverlapOptions()
    parser.add_argument("--rounds", type=int, default=default.rounds, help="of each case")
    parser.add_argument("--pages", type=int, default=default.pages, help="a load, 0: by shape")
    return run_command(
        parser, lambda given, say: time_overlaps(OverlapOptions(given.rounds, given.pages), say)
    )


if __name__ == "__main__":
    sys.exit(main())
