"""What verification costs: pages of a directory store read from the page cache, beside preadv.

    python -m bana.eval.bench.store_reads [--json FILE]

Both sides read the same bytes of the same files, in the same order, with the same threads, into the
same buffers; the plain side reads payloads only and checks nothing. Sides alternate by round.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import msgspec

from bana.eval.bench.errors import BenchError
from bana.eval.bench.facts import describe_machine, read_source
from bana.eval.bench.pairs import figure_level
from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.stores.directory import DirectoryStore
from bana.radix_global.stores.options import DirectoryOptions
from bana.radix_global.stores.page import HEADER_BYTES
from bana.radix_global.stores.store import ReadOutcome
from bana.slo.figures import Aim, BenchReport, Figure, judge_figure
from bana.slo.stats import bootstrap_paired

MIB = 2**20
SHARE_AIM = Aim(0.8)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is read: `total_bytes` in pages, by each number of threads, `rounds` times a side."""

    total_bytes: int = 1024 * MIB
    page_bytes: tuple[int, ...] = (65_536, 368_640, 2 * MIB)
    threads: tuple[int, ...] = (1, 2, 4)
    rounds: int = 9
    buffer_bytes: int = 64 * MIB
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Extent:
    """Where one payload stands."""

    fd: int
    offset: int
    length_bytes: int


ReadPage = Callable[[int, memoryview], None]


def measure_reads(settings: Settings, say: Callable[[str], None]) -> Mapping[str, Figure]:
    """`share_of_preadv` for every page size and number of threads, with both sides' speeds."""
    figures: dict[str, Figure] = {}
    for page_bytes in settings.page_bytes:
        with _written(settings, page_bytes) as sides:
            for threads in settings.threads:
                some = _compare(settings, page_bytes, threads, sides)
                figures |= {f"{name}_{page_bytes}b_{threads}t": some[name] for name in some}
                say(f"{page_bytes} bytes a page, {threads} thread(s): {_describe(some)}")
    return figures


@contextmanager
def _written(settings: Settings, page_bytes: int) -> Iterator[tuple[ReadPage, ReadPage]]:
    """The two ways to read page n of a new store, just written and so in the page cache."""
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
            store.put(_key(number), content)
        extents = _find_extents(folder, page_bytes, stack)

        def read_verified(number: int, target: memoryview) -> None:
            if store.read(_key(number), target) is not ReadOutcome.READ:
                raise BenchError(f"page {number} could not be read")

        def read_plain(number: int, target: memoryview) -> None:
            extent = extents[number]
            if os.preadv(extent.fd, [target], extent.offset) != extent.length_bytes:
                raise BenchError(f"page {number} could not be read")

        yield read_verified, read_plain


def _find_extents(folder: Path, page_bytes: int, stack: ExitStack) -> list[Extent]:
    """Where the payloads stand, in the order they were written."""
    extents = []
    for path in sorted(folder.iterdir()):
        fd = os.open(path, os.O_RDONLY)
        stack.callback(os.close, fd)
        starts = range(HEADER_BYTES, path.stat().st_size, HEADER_BYTES + page_bytes)
        extents += [Extent(fd, start, page_bytes) for start in starts]
    return extents


def _compare(
    settings: Settings, page_bytes: int, threads: int, sides: tuple[ReadPage, ReadPage]
) -> dict[str, Figure]:
    pages = settings.total_bytes // page_bytes
    order = list(range(pages))
    Random(settings.seed).shuffle(order)
    portions = [order[start::threads] for start in range(threads)]
    buffers = [memoryview(bytearray(settings.buffer_bytes)) for _ in range(threads)]
    speeds: tuple[list[float], list[float]] = ([], [])
    for _ in range(2):
        for side in sides:
            _time_reads(side, portions, buffers, page_bytes)  # touches every buffer once
    for number in range(settings.rounds):
        for index in (0, 1) if number % 2 == 0 else (1, 0):
            took_s = _time_reads(sides[index], portions, buffers, page_bytes)
            speeds[index].append(pages * page_bytes / took_s)
    spread = bootstrap_paired(*speeds, settings.seed)
    return {
        "share_of_preadv": judge_figure(spread.value, spread.low, spread.high, "ratio", SHARE_AIM),
        "verified_bytes_per_s": figure_level(speeds[0], settings.seed, "bytes/s"),
        "preadv_bytes_per_s": figure_level(speeds[1], settings.seed, "bytes/s"),
    }


def _time_reads(
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


def _describe(figures: Mapping[str, Figure]) -> str:
    share = figures["share_of_preadv"]
    verified, plain = (figures[f"{side}_bytes_per_s"].value for side in ("verified", "preadv"))
    return (
        f"share_of_preadv {share.value:.3f} ({share.low:.3f}..{share.high:.3f}), "
        f"{verified / 1e9:.2f} of {plain / 1e9:.2f} GB/s"
    )


def main() -> None:
    """Measure with the defaults, print each share, and write the report where asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="where to write the report")
    options = parser.parse_args()
    settings, commit = Settings(), read_source().commit
    figures = measure_reads(settings, print)
    report = BenchReport(
        describe_machine(), commit, settings.seed, dataclasses.asdict(settings), figures
    )
    if options.json is not None:
        options.json.write_bytes(msgspec.json.encode(report))


if __name__ == "__main__":
    main()
