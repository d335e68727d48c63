"""What verification costs: pages of a directory store read from the page cache, beside preadv.

Both sides read the same bytes of the same files, in the same order, with the same threads, into the
same buffers; the plain side reads payloads only and checks nothing. Sides alternate by round.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import msgspec

from bana.eval.bench.errors import BenchError
from bana.eval.bench.pairs import figure_level
from bana.eval.bench.trials import Values
from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.stores.directory import DirectoryStore
from bana.radix_global.stores.options import DirectoryOptions
from bana.radix_global.stores.page import HEADER_BYTES
from bana.radix_global.stores.store import PageOrigin, ReadOutcome
from bana.slo.figures import Aim, Figure, judge_figure
from bana.slo.stats import bootstrap_paired

MIB = 2**20
ORIGIN = PageOrigin(b"", 0)
SHARE_AIM = Aim(0.8)


class ReadSettings(msgspec.Struct, frozen=True):
    """What is read: `total_bytes` in pages, by each number of threads, `rounds` times a side."""

    total_bytes: int = 1024 * MIB
    page_bytes: tuple[int, ...] = (65_536, 368_640, 2 * MIB)
    threads: tuple[int, ...] = (1, 2, 4)
    rounds: int = 9
    buffer_bytes: int = 64 * MIB
    seed: int = 0


class Extent(msgspec.Struct, frozen=True):
    """Where one payload stands."""

    fd: int
    offset: int
    length_bytes: int


ReadPage = Callable[[int, memoryview], None]


class Sides(msgspec.Struct, frozen=True):
    """The two ways to read page n, of `pages`."""

    pages: int
    page_bytes: int
    verified: ReadPage
    plain: ReadPage


@contextmanager
def open_reads(settings: ReadSettings, page_bytes: int) -> Iterator[Sides]:
    """Both sides of a new store, just written and so in the page cache."""
    pages = settings.total_bytes // page_bytes
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bb-"))) / "tier"
        options = DirectoryOptions(
            3 * settings.total_bytes, segment_bytes=settings.total_bytes // 4
        )
        store = DirectoryStore(folder, options, Random(settings.seed))
        stack.callback(store.close)
        content = memoryview(bytearray(Random(settings.seed).randbytes(page_bytes)))
        for number in range(pages):
            content[:8] = number.to_bytes(8, "little")
            store.put(_key(number), content, ORIGIN)
        extents = find_extents(folder, page_bytes, stack)

        def read_verified(number: int, target: memoryview) -> None:
            if store.read(_key(number), target) is not ReadOutcome.READ:
                raise BenchError(f"page {number} could not be read")

        def read_plain(number: int, target: memoryview) -> None:
            extent = extents[number]
            if os.preadv(extent.fd, [target], extent.offset) != extent.length_bytes:
                raise BenchError(f"page {number} could not be read")

        yield Sides(pages, page_bytes, read_verified, read_plain)


def find_extents(folder: Path, page_bytes: int, stack: ExitStack) -> list[Extent]:
    """Where the payloads stand, in the order they were written."""
    extents = []
    for path in sorted(folder.iterdir()):
        fd = os.open(path, os.O_RDONLY)
        stack.callback(os.close, fd)
        starts = range(HEADER_BYTES, path.stat().st_size, HEADER_BYTES + page_bytes)
        extents += [Extent(fd, start, page_bytes) for start in starts]
    return extents


def take_speeds(settings: ReadSettings, threads: int, sides: Sides) -> Values:
    """Bytes a second of each side and round, as `side/round`; sides alternate."""
    order = list(range(sides.pages))
    Random(settings.seed).shuffle(order)
    portions = [order[start::threads] for start in range(threads)]
    buffers = [memoryview(bytearray(settings.buffer_bytes)) for _ in range(threads)]
    readers = {"verified": sides.verified, "plain": sides.plain}
    for _ in range(2):
        for read in readers.values():
            time_reads(read, portions, buffers, sides.page_bytes)  # touches every buffer once
    speeds = {}
    for number in range(settings.rounds):
        for side in sorted(readers, reverse=number % 2 == 0):
            took_s = time_reads(readers[side], portions, buffers, sides.page_bytes)
            speeds[f"{side}/{number}"] = sides.pages * sides.page_bytes / took_s
    return speeds


def judge_reads(speeds: Values, seed: int) -> dict[str, Figure]:
    """`share_of_preadv` and both sides' speeds."""
    rounds = range(len(speeds) // 2)
    verified, plain = ([speeds[f"{side}/{n}"] for n in rounds] for side in ("verified", "plain"))
    spread = bootstrap_paired(verified, plain, seed)
    return {
        "share_of_preadv": judge_figure(spread.value, spread.low, spread.high, "ratio", SHARE_AIM),
        "verified_bytes_per_s": figure_level(verified, seed, "bytes/s"),
        "preadv_bytes_per_s": figure_level(plain, seed, "bytes/s"),
    }


def time_reads(
    read: ReadPage,
    portions: Sequence[Sequence[int]],
    buffers: Sequence[memoryview],
    page_bytes: int,
) -> float:
    """Seconds from the common start until the last thread has read its portion."""
    start, end = (threading.Barrier(len(portions) + 1) for _ in range(2))

    def work(portion: Sequence[int], buffer: memoryview) -> None:
        slots = len(buffer) // page_bytes
        targets = [buffer[n * page_bytes : (n + 1) * page_bytes] for n in range(slots)]
        try:
            start.wait()
            for turn, number in enumerate(portion):
                read(number, targets[turn % slots])
            end.wait()
        except BaseException:
            end.abort()
            raise

    workers = [
        threading.Thread(target=work, args=pair) for pair in zip(portions, buffers, strict=True)
    ]
    for worker in workers:
        worker.start()
    start.wait()
    begun_s = time.perf_counter()
    end.wait()
    took_s = time.perf_counter() - begun_s
    for worker in workers:
        worker.join()
    return took_s


def _key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "big")
