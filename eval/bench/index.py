"""What the prefix index carries at a given size, and what a page in it weighs.

    python -m bana.eval.bench.index --json index.json [--pages 10000000] [--windows 5]
        [--window-s 10] [--seed 0]

Requests of 64 pages: 16 of a system prompt, 16 of a document, 32 of their own. Each is matched,
inserted in the arena and on two tiers, matched, leased and released as by a second instance; then
every place is evicted down to its size. The index is filled in that way and then measured in
windows of more of it.

An *operation* is one page in one call.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import ParamSpec, TypeVar

import msgspec

from bana.eval.bench.facts import describe_machine, read_source
from bana.eval.bench.harness import write_report
from bana.eval.bench.pairs import figure_level, figure_range
from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.pages import ARENA, Chain, IndexLimits
from bana.radix_global.tree import PrefixTree
from bana.slo.figures import Aim, BenchReport, Better, Figure

AIMED_PAGES = 10_000_000
OPS_AIM = Aim(200_000.0)
BYTES_AIM = Aim(200.0, Better.LOWER)
TIERS = (1, 2)
PAGE_BYTES = 2 << 20
OWNER = "instance-0"
BATCH_REQUESTS = 100
Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class IndexSettings(msgspec.Struct, frozen=True):
    """The sizes, the requests and the windows. Documents are drawn by Zipf's law."""

    pages: int
    arena_share: float = 0.1
    system_prompts: int = 64
    documents: int = 4_096
    shared_pages: int = 16
    own_pages: int = 32
    windows: int = 5
    window_s: float = 10.0

    @property
    def request_pages(self) -> int:
        """Pages of one request."""
        return 2 * self.shared_pages + self.own_pages


class FigureKind(msgspec.Struct, frozen=True):
    """What a figure counts, and what it should reach."""

    unit: str
    aim: Aim | None


def list_figures(pages: int) -> dict[str, FigureKind]:
    """Operations, calls and bytes of an index of this size, by name; aims are for AIMED_PAGES."""
    size = f"{pages // 1_000_000}m" if pages % 1_000_000 == 0 else f"{pages / 1_000:g}k"
    is_aimed = pages == AIMED_PAGES
    ops_aim, bytes_aim = (OPS_AIM, BYTES_AIM) if is_aimed else (None, None)
    return {
        f"index_ops_per_s_{size}": FigureKind("operations/s", ops_aim),
        f"index_calls_per_s_{size}": FigureKind("calls/s", None),
        "index_bytes_per_page" + ("" if is_aimed else f"_{size}"): FigureKind("bytes", bytes_aim),
    }


class Requests:
    """The keys of one request after the other."""

    def __init__(self, settings: IndexSettings, seed: int) -> None:
        self._rng = Random(seed)
        self._own_bytes = settings.own_pages * KEY_BYTES
        shared_bytes = settings.shared_pages * KEY_BYTES
        systems = [self._rng.randbytes(shared_bytes) for _ in range(settings.system_prompts)]
        self._prefixes = [
            self._rng.choice(systems) + self._rng.randbytes(shared_bytes)
            for _ in range(settings.documents)
        ]
        self._weights = [1 / rank for rank in range(1, settings.documents + 1)]

    def draw(self, count: int) -> list[bytes]:
        """The next requests."""
        prefixes = self._rng.choices(self._prefixes, self._weights, k=count)
        return [prefix + self._rng.randbytes(self._own_bytes) for prefix in prefixes]


class Meter:
    """Operations, calls and seconds by kind of call; `wall_s` is all that serving took."""

    def __init__(self) -> None:
        self.wall_s = 0.0
        self.operations: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._call_s: dict[str, float] = {}

    def run(
        self, keys: int, call: Callable[Given, Answer], *args: Given.args, **options: Given.kwargs
    ) -> Answer:
        """Make a call that concerns so many keys, on the clock."""
        start_s = time.perf_counter()
        answer = call(*args, **options)
        kind = call.__name__
        self._call_s[kind] = self._call_s.get(kind, 0.0) + time.perf_counter() - start_s
        self.operations[kind] += keys
        self.calls[kind] += 1
        return answer

    def describe_us(self) -> dict[str, float]:
        """Mean microseconds of each kind of call."""
        return {k: round(self._call_s[k] / n * 1e6, 1) for k, n in sorted(self.calls.items())}


class Owner:
    """What the owner of an index asks of it, without the bytes."""

    def __init__(self, settings: IndexSettings) -> None:
        room = settings.pages + settings.request_pages
        self.index = PrefixTree(IndexLimits(max_pages=room, tiers=len(TIERS)))
        self._slots = range(settings.request_pages)
        arena_pages = int(settings.pages * settings.arena_share)
        self._capacities = {ARENA: arena_pages} | dict.fromkeys(TIERS, settings.pages)

    def serve(self, keys: bytes, meter: Meter) -> None:
        """One request, from its arrival to the evictions that it causes."""
        index, pages = self.index, len(self._slots)
        meter.run(pages, index.match, keys)
        chain = Chain(keys=keys, page_bytes=PAGE_BYTES)
        meter.run(pages, index.insert_in_arena, chain, self._slots)
        for tier in TIERS:
            meter.run(pages, index.insert_on_tier, chain, tier)
        meter.run(pages, index.match, keys)
        lease = meter.run(pages, index.lease, OWNER, keys)
        meter.run(pages, index.release, OWNER, lease.lease_id)
        for place, count in enumerate(index.counts().places):
            surplus = count.pages - self._capacities[place]
            if surplus > 0:
                meter.run(surplus, index.evict, place, pages=surplus)


class Measured(msgspec.Struct, frozen=True):
    """The figures, and the mean time of each kind of call in the last window."""

    figures: Mapping[str, Figure]
    call_us: Mapping[str, float]


def measure_index(settings: IndexSettings, seed: int) -> Measured:
    """Fill one index, then take the windows."""
    requests = Requests(settings, seed)
    before_bytes = _resident_bytes()
    owner = Owner(settings)

    def weigh() -> float:
        gc.collect()
        return (_resident_bytes() - before_bytes) / owner.index.counts().pages

    meter = Meter()
    while owner.index.counts().pages < settings.pages:
        _serve_batch(owner, requests, meter)
    weights = [weigh()]
    _say(f"filled in {meter.wall_s:.0f} s: {weights[0]:.1f} bytes a page")
    meters = []
    for number in range(settings.windows):
        meter = Meter()
        while meter.wall_s < settings.window_s:
            _serve_batch(owner, requests, meter)
        meters.append(meter)
        weights.append(weigh())
        rate = meter.operations.total() / meter.wall_s
        _say(f"window {number + 1}: {rate:.0f} operations/s, {weights[-1]:.1f} bytes a page")
    figures = _judge(settings, seed, meters, weights)
    return Measured(figures, meters[-1].describe_us())


def _serve_batch(owner: Owner, requests: Requests, meter: Meter) -> None:
    """Serve a number of requests; drawing them is not on the clock."""
    drawn = requests.draw(BATCH_REQUESTS)
    start_s = time.perf_counter()
    for keys in drawn:
        owner.serve(keys, meter)
    meter.wall_s += time.perf_counter() - start_s


def _judge(
    settings: IndexSettings, seed: int, meters: Sequence[Meter], weights: Sequence[float]
) -> dict[str, Figure]:
    operations = [meter.operations.total() / meter.wall_s for meter in meters]
    calls = [meter.calls.total() / meter.wall_s for meter in meters]
    kinds = list_figures(settings.pages)
    ops_name, calls_name, bytes_name = kinds
    ops, weight = kinds[ops_name], kinds[bytes_name]
    return {
        ops_name: figure_level(operations, seed, ops.unit, ops.aim),
        calls_name: figure_level(calls, seed, kinds[calls_name].unit),
        bytes_name: figure_range(weights, weight.unit, weight.aim),
    }


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Measure as the command line says and write the report."""
    parser = argparse.ArgumentParser(prog="python -m bana.eval.bench.index")
    parser.add_argument("--json", type=Path, required=True, help="where the report is written")
    parser.add_argument("--pages", type=int, default=AIMED_PAGES)
    parser.add_argument("--windows", type=int, default=5, help="in which it is measured")
    parser.add_argument("--window-s", type=float, default=10.0, help="seconds of each")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    settings = IndexSettings(given.pages, windows=given.windows, window_s=given.window_s)
    measured = measure_index(settings, given.seed)
    described = msgspec.to_builtins(settings) | {"tiers": len(TIERS), "call_us": measured.call_us}
    report = BenchReport(
        machine=describe_machine(),
        commit=read_source().commit,
        seed=given.seed,
        settings=described,
        figures=measured.figures,
    )
    write_report(given.json, report)


if __name__ == "__main__":
    main()
