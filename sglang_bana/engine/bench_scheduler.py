"""What bana's policies add to a scheduling pass: milliseconds beside SGLang's own order.

`python -m sglang_bana.engine.bench_scheduler --json FILE [--requests N] [--pairs N] [--seed N]`

Both sides plan the same queue in one process; pairs alternate which side is first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

import msgspec
from sglang.srt.runtime_context import get_context

from bana.slo.errors import ConfigError
from sglang_bana.engine.bench_command import Say, run_command
from sglang_bana.engine.scheduling_stand import Pressure, QueuePlan, SchedulingStand

# Each order, and what its queue meets; only the default gives requests up.
CASES: tuple[tuple[str, Pressure], ...] = (
    ("budget", Pressure.ON_TIME),
    ("budget", Pressure.TURNING_LATE),
    ("budget", Pressure.LATE),
    ("cascade", Pressure.ON_TIME),
    ("cascade", Pressure.LATE),
    ("edf", Pressure.ON_TIME),
    ("edf", Pressure.LATE),
)
WARM_UP_PAIRS = 2
MAX_REQUESTS = 100_000


class PassSamples(msgspec.Struct, frozen=True):
    """One case: milliseconds of each pass, pair by pair."""

    bana_ms: list[float]
    stock_ms: list[float]


class PassOptions(msgspec.Struct, frozen=True):
    """How long the queue is, and how often both sides plan it."""

    requests: int = 10_000
    pairs: int = 25
    seed: int = 0


def time_passes(options: PassOptions, say: Say) -> Mapping[str, PassSamples]:
    """All cases by name; ConfigError for options that measure nothing."""
    if not 1 <= options.requests <= MAX_REQUESTS or options.pairs < 1:
        raise ConfigError(
            f"cannot time {options.pairs} pairs of passes over {options.requests} requests: "
            f"pairs must be >= 1, requests from 1 to {MAX_REQUESTS}"
        )
    samples = {}
    # SGLang's order asks the configuration of a running server.
    with get_context().override_server_args():
        for order, pressure in CASES:
            name = order if pressure is Pressure.ON_TIME else f"{order}, {pressure}"
            samples[name] = time_case(QueuePlan(order, pressure, options.requests), options)
            say(f"{name}: {options.pairs} pairs of passes over {options.requests} requests")
    return samples


def time_case(plan: QueuePlan, options: PassOptions) -> PassSamples:
    """Pairs of passes over one queue, after some that do not count."""
    stand = SchedulingStand(plan, options.seed)
    samples = PassSamples([], [])
    for index in range(-WARM_UP_PAIRS, options.pairs):
        if index % 2 == 0:
            ours, theirs = stand.time_bana_ms(), stand.time_stock_ms()
        else:
            theirs, ours = stand.time_stock_ms(), stand.time_bana_ms()
        if index >= 0:
            samples.bana_ms.append(ours)
            samples.stock_ms.append(theirs)
    return samples


def main() -> int:
    """Time as the command line says; 2 where it says something unusable."""
    parser = argparse.ArgumentParser(prog="bench_scheduler", description="added time of a pass")
    default = PassOptions()
    parser.add_argument("--requests", type=int, default=default.requests, help="that wait")
    parser.add_argument("--pairs", type=int, default=default.pairs, help="of passes, each case")
    parser.add_argument("--seed", type=int, default=default.seed, help="of lengths and promises")
    return run_command(
        parser,
        lambda given, say: time_passes(PassOptions(given.requests, given.pairs, given.seed), say),
    )


if __name__ == "__main__":
    sys.exit(main())
