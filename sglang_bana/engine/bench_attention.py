"""How `bana_cpu` compares with torch_native: the whole attention call, gathering included.

`python -m sglang_bana.engine.bench_attention --json FILE [--quick] [--seed N]
[--threads N] [--clock wall|cpu]`

A sample plans one batch and runs one layer's call as often as fills MIN_SAMPLE_S; both sides of
a pair run equally often, and the pairs alternate which side is first.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any

import msgspec
import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

from bana.slo.errors import ConfigError
from bana.slo.figures import Figure, judge_figure
from bana.slo.stats import bootstrap_paired
from sglang_bana.engine.attention import BanaCpuAttnBackend
from sglang_bana.engine.attention_stand import Stand, build_stand
from sglang_bana.engine.bench_attention_grid import Extent, list_cases
from sglang_bana.engine.bench_command import run_command

MIN_SAMPLE_S = 0.02
QUICK_PAIRS = 5


class Clock(StrEnum):
    """What a second is: the CPU clock leaves out the time that other processes took the core."""

    WALL = "wall"
    CPU = "cpu"


CLOCKS: Mapping[Clock, Callable[[], float]] = {
    Clock.WALL: time.perf_counter,
    Clock.CPU: time.process_time,
}


class BenchOptions(msgspec.Struct, frozen=True):
    """What the figures depend on. Instances run with one core, hence one thread."""

    extent: Extent = Extent.WHOLE
    seed: int = 0
    threads: int = 1
    pairs: int = 7
    clock: Clock = Clock.WALL


class Measured(msgspec.Struct, frozen=True):
    """What this process adds to the report of `bana eval bench attention`."""

    settings: Mapping[str, object]
    figures: Mapping[str, Figure]


def run_attention_bench(options: BenchOptions, say: Callable[[str], None]) -> Measured:
    """Measure every case of the grid; a quick run's figures claim nothing."""
    if options.pairs < 5 or options.threads < 1 or options.seed < 0:
        raise ConfigError(
            f"cannot measure {options.pairs} pairs on {options.threads} threads with seed "
            f"{options.seed}: pairs must be >= 5, threads >= 1 and seed >= 0"
        )
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        figures = dict(_measure_all(options, say))
    finally:
        torch.set_num_threads(before)
    return Measured(
        settings={
            "seed": options.seed,
            "extent": options.extent.value,
            "threads": options.threads,
            "pairs": options.pairs,
            "clock": options.clock.value,
            "min_sample_s": MIN_SAMPLE_S,
            "layers_per_plan": 1,
            "baseline": "torch_native of the installed SGLang",
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        },
        figures=figures,
    )


def _measure_all(options: BenchOptions, say: Callable[[str], None]) -> Iterator[tuple[str, Figure]]:
    for case in list_cases(options.extent):
        with torch.no_grad():
            theirs, ours = time_pairs(build_stand(case.plan, options.seed), options)
        spread = bootstrap_paired(theirs, ours, options.seed)
        figure = judge_figure(spread.value, spread.low, spread.high, "x", case.aim)
        if options.extent is Extent.QUICK:
            figure = msgspec.structs.replace(figure, met=None)
        say(f"{case.figure} {spread.value:.2f} [{spread.low:.2f}, {spread.high:.2f}]")
        yield case.figure, figure


def time_pairs(stand: Stand, options: BenchOptions) -> tuple[list[float], list[float]]:
    """Seconds of torch_native and of bana_cpu for one forward of the stand, in pairs."""
    clock = CLOCKS[options.clock]
    sides = (TorchNativeAttnBackend(stand.runner), BanaCpuAttnBackend(stand.runner))
    for backend in sides:
        stand.run(backend)
    repeats = max(1, round(MIN_SAMPLE_S / _time_forward(stand, sides[1], 1, clock)))
    samples: tuple[list[float], list[float]] = ([], [])
    for index in range(options.pairs):
        for side in (0, 1) if index % 2 == 0 else (1, 0):
            samples[side].append(_time_forward(stand, sides[side], repeats, clock))
    return samples


def _time_forward(stand: Stand, backend: Any, repeats: int, clock: Callable[[], float]) -> float:
    start_s = clock()
    for _ in range(repeats):
        stand.run(backend)
    return (clock() - start_s) / repeats


def main() -> int:
    """Run the benchmark as the command line says; 2 where it says something unusable."""
    parser = argparse.ArgumentParser(prog="bench_attention", description="bana_cpu vs torch_native")
    parser.add_argument("--quick", action="store_true", help="a smoke: claims nothing")
    parser.add_argument("--seed", type=int, default=0, help="of the drawn tensors")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of an instance")
    parser.add_argument("--clock", choices=[*Clock], default=Clock.WALL, help="cpu: a busy machine")
    return run_command(parser, lambda given, say: run_attention_bench(_read_options(given), say))


def _read_options(given: argparse.Namespace) -> BenchOptions:
    return BenchOptions(
        extent=Extent.QUICK if given.quick else Extent.WHOLE,
        seed=given.seed,
        threads=given.threads,
        pairs=QUICK_PAIRS if given.quick else BenchOptions().pairs,
        clock=Clock(given.clock),
    )


if __name__ == "__main__":
    sys.exit(main())
