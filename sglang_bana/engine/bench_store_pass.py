"""What the store adds to a scheduling pass: milliseconds with it, beside a queue without one.

`python -m sglang_bana.engine.bench_store_pass --json FILE [--requests N] [--pairs N] [--seed N]`

Both sides plan equal queues in one process; pairs alternate which side is first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec
from sglang.srt.runtime_context import SpawnRanks, publish, reset_context
from sglang.srt.server_args import ServerArgs

from bana.slo.errors import ConfigError
from sglang_bana.engine.bench_command import Say, run_command
from sglang_bana.engine.store_pass_stand import StorePassPlan, StorePassStand, Waiting

WARM_UP_PAIRS = 2
# A page a pair arrives for each held request, of which the shortest must not have all.
MAX_PAIRS = 101
MIN_REQUESTS, MAX_REQUESTS = 1, 4_096


class StorePassSamples(msgspec.Struct, frozen=True):
    """One case: milliseconds of each pass, pair by pair."""

    store_ms: list[float]
    plain_ms: list[float]


class StorePassOptions(msgspec.Struct, frozen=True):
    """How long the queue is, and how often both sides plan it."""

    requests: int = 1_000
    pairs: int = 25
    seed: int = 0


def time_store_passes(options: StorePassOptions, say: Say) -> Mapping[str, StorePassSamples]:
    """All cases by name; ConfigError for options that measure nothing."""
    in_range = MIN_REQUESTS <= options.requests <= MAX_REQUESTS
    if not in_range or not 1 <= options.pairs <= MAX_PAIRS:
        raise ConfigError(
            f"cannot time {options.pairs} pairs of passes over {options.requests} requests: "
            f"pairs must be from 1 to {MAX_PAIRS}, requests from {MIN_REQUESTS} to {MAX_REQUESTS}"
        )
    samples = {}
    with configured():
        for waiting in Waiting:
            plan = StorePassPlan(waiting, options.requests)
            samples[waiting.value] = time_case(plan, options)
            say(f"{waiting}: {options.pairs} pairs of passes over {options.requests} requests")
    return samples


def time_case(plan: StorePassPlan, options: StorePassOptions) -> StorePassSamples:
    """Pairs of passes over one queue, after some that do not count."""
    stand = StorePassStand(plan, options.seed)
    samples = StorePassSamples([], [])
    for index in range(-WARM_UP_PAIRS, options.pairs):
        if index % 2 == 0:
            with_store, without = stand.time_store_ms(), stand.time_plain_ms()
        else:
            without, with_store = stand.time_plain_ms(), stand.time_store_ms()
        if index >= 0:
            samples.store_ms.append(with_store)
            samples.plain_ms.append(without)
    return samples


@contextmanager
def configured() -> Iterator[None]:
    """SGLang's configuration, as in the scheduler of a running server."""
    arguments = ServerArgs(model_path="dummy", device="cpu", pp_max_micro_batch_size=64)
    reset_context()
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0))
    try:
        yield
    finally:
        reset_context()


def main() -> int:
    """Time as the command line says; 2 where it says something unusable, or nothing was timed."""
    parser = argparse.ArgumentParser(prog="bench_store_pass", description="added time of a pass")
    default = StorePassOptions()
    parser.add_argument("--requests", type=int, default=default.requests, help="that wait")
    parser.add_argument("--pairs", type=int, default=default.pairs, help="of passes, each case")
    parser.add_argument("--seed", type=int, default=default.seed, help="of lengths and promises")
    return run_command(
        parser,
        lambda given, say: time_store_passes(
            StorePassOptions(given.requests, given.pairs, given.seed), say
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
