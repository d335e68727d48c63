"""Bana's directory tier beside LMCache's disk backend and SGLang's file storage, in pairs.

`python -m sglang_bana.engine.peers.bench --json FILE --plan JSON [--lmcache-python PATH]`

Every side has the same pages, written and synced, read twice before the first pair, and read by
the same number of threads into memory of the same size. Pairs alternate which side is first.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec
import torch

from bana.slo.errors import BanaError, ConfigError
from sglang_bana.engine.bench_command import Say, run_command
from sglang_bana.engine.peers.bana_directory import open_bana_directory
from sglang_bana.engine.peers.hicache_file import HicacheBare, HicacheFolder, HicachePlaced
from sglang_bana.engine.peers.lmcache_disk import open_lmcache_disk
from sglang_bana.engine.peers.reading import NUMBER_BYTES, ReadPlan, Side, WrongPage

WARM_UP_ROUNDS = 2


class PeerPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is read, by which numbers of threads, and how many pairs are taken of each."""

    reading: ReadPlan
    threads: tuple[int, ...]
    pairs: int


class PeerSamples(msgspec.Struct, frozen=True):
    """Bytes a second of each round, pair by pair."""

    bana: list[float]
    peer: list[float]


def compare_peers(
    plan: PeerPlan, lmcache_python: Path | None, say: Callable[[str], None]
) -> dict[str, PeerSamples]:
    """Samples by `PEER/THREADS`; without an interpreter for LMCache, none of it."""
    _require_measurable(plan)
    torch.set_num_threads(1)
    samples = {}
    with tempfile.TemporaryDirectory(prefix="bb-") as name, ExitStack() as stack:
        folder = Path(name)
        bana = stack.enter_context(open_bana_directory(plan.reading, folder / "bana"))
        peers: dict[str, Side] = {}
        if lmcache_python is not None:
            lmcache = open_lmcache_disk(plan.reading, folder / "lmcache", lmcache_python)
            peers["lmcache_disk"] = stack.enter_context(lmcache)
        pages = HicacheFolder(plan.reading, folder / "hicache")
        peers |= {"hicache_file": HicachePlaced(pages), "hicache_file_get": HicacheBare(pages)}
        os.sync()
        for peer, side in {"bana": bana, **peers}.items():
            side.check()
            say(f"{peer}: {plan.reading.pages} pages of {plan.reading.shape.page_bytes} bytes")
        for threads in plan.threads:
            for peer, side in peers.items():
                samples[f"{peer}/{threads}"] = take_pairs(plan, threads, bana, side)
    return samples


def take_pairs(plan: PeerPlan, threads: int, bana: Side, peer: Side) -> PeerSamples:
    """Pairs of rounds, after some that do not count."""
    rates: tuple[list[float], list[float]] = ([], [])
    read_bytes = plan.reading.pages * plan.reading.shape.page_bytes
    for index in range(-WARM_UP_ROUNDS, plan.pairs):
        for number, side in ((0, bana), (1, peer)) if index % 2 == 0 else ((1, peer), (0, bana)):
            took_s = side.time_round(threads)
            if index >= 0:
                rates[number].append(read_bytes / took_s)
    return PeerSamples(*rates)


def _require_measurable(plan: PeerPlan) -> None:
    reading, page_bytes = plan.reading, plan.reading.shape.page_bytes
    numbers = plan.threads or (0,)
    if plan.pairs < 1 or min(numbers) < 1 or max(numbers) > reading.max_threads:
        raise ConfigError(
            f"cannot take {plan.pairs} pairs with threads {plan.threads}: pairs must be >= 1, "
            f"threads from 1 to max_threads={reading.max_threads}"
        )
    fits = page_bytes >= NUMBER_BYTES and min(reading.slots, reading.pages) >= 2
    if not fits:
        raise ConfigError(
            f"cannot read pages of {page_bytes} bytes out of {reading.total_bytes} into "
            f"{reading.buffer_bytes}: they must have {NUMBER_BYTES} bytes or more, and either must "
            "hold 2 pages"
        )


def main() -> int:
    """Compare as the command line says; 2 where it says something unusable."""
    parser = argparse.ArgumentParser(prog="bench", description="stores of pages beside bana's")
    parser.add_argument("--plan", required=True, help="what is read, as JSON")
    parser.add_argument("--lmcache-python", type=Path, help="an interpreter that has LMCache")
    return run_command(parser, _compare)


def _compare(given: argparse.Namespace, say: Say) -> object:
    try:
        plan = msgspec.json.decode(given.plan, type=PeerPlan)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"--plan is no plan: {error}; see PeerPlan") from error
    try:
        return compare_peers(plan, given.lmcache_python, say)
    except WrongPage as error:
        raise BanaError(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
