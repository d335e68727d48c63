"""Where reads from tiers are timed: the same pages on two throttled tiers, read into an arena.

    folder 1 ── throttle ─┐
                          ├─▶ reader (policy) ─▶ arena in shared memory
    folder 2 ── throttle ─┘

The folders lie in the page cache, so that the throttles alone decide how fast a tier is.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import msgspec

from bana.eval.bench.errors import BenchError
from bana.eval.bench.store.reads import Extent, find_extents, time_reads
from bana.radix_global.arena import Arena
from bana.radix_global.arena_layout import ArenaLayout
from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.reader.options import ReaderOptions
from bana.radix_global.reader.policies import DEFAULT_READER, READERS
from bana.radix_global.reader.reader import Reader, ReadTier, SlotAccess
from bana.radix_global.reader.wanting import PageRead, PageWant, ReadEnd
from bana.radix_global.stores.directory import DirectoryStore
from bana.radix_global.stores.options import DirectoryOptions
from bana.radix_global.stores.store import PageOrigin, ReadOutcome, Store, WriteOutcome
from bana.radix_global.stores.throttled import Throttle, ThrottledStore
from bana.slo.errors import ConfigError

SHARED_MEMORY = Path("/dev/shm")
TIERS = (1, 2)
NUMBER_BYTES = 8


class StandSettings(msgspec.Struct, frozen=True):
    """What lies on each tier, and how it is read: `width` threads a tier."""

    total_bytes: int
    page_bytes: int
    width: int = 2
    latency_s: float = 0.001
    timeout_s: float = 120.0

    @property
    def pages(self) -> int:
        """How many pages each tier holds."""
        return self.total_bytes // self.page_bytes


class TierSpeed(msgspec.Struct, frozen=True):
    """How fast a tier is, and from `slows_at_s` after the start only `slow_bytes_per_s`."""

    bytes_per_s: float
    slows_at_s: float = float("inf")
    slow_bytes_per_s: float = 1.0


class ReadRun(msgspec.Struct, frozen=True):
    """Which tiers read so many pages under which policy; tiers left out do not take part."""

    speeds: Mapping[int, TierSpeed]
    pages: int
    policy: str = DEFAULT_READER


class MonotonicClock:
    """Seconds as they pass."""

    def now_s(self) -> float:
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        time.sleep(duration_s)


class SlowingStore(ThrottledStore):
    """A throttled tier that turns into `later` at a time."""

    def __init__(
        self, inner: Store, throttle: Throttle, rng: Random, later: ThrottledStore, at_s: float
    ) -> None:
        super().__init__(inner, throttle, MonotonicClock(), rng)
        self._later = later
        self._at_s = at_s

    def read(self, key: bytes, target: memoryview) -> ReadOutcome:
        if time.monotonic() >= self._at_s:
            return self._later.read(key, target)
        return super().read(key, target)


class StoreStand:
    """The tiers' folders and the arena; every run has a reader of its own.

    `extents` are where the payloads of tier 1 stand.
    """

    def __init__(
        self,
        settings: StandSettings,
        folders: Mapping[int, Store],
        extents: Sequence[Extent],
        arena: Arena,
    ) -> None:
        self._settings = settings
        self._folders = folders
        self._extents = extents
        self._arena = arena

    def read(self, run: ReadRun) -> float:
        """Verified bytes a second from the want of the first page to the outcome of the last."""
        arena, clock = self._arena, MonotonicClock()
        slots = arena.take(run.pages)
        spares = arena.take(self._settings.width * len(run.speeds))
        told = threading.Event()
        reader = Reader(
            self._tiers(run, clock.now_s()),
            SlotAccess(arena.view, spares),
            READERS.create(run.policy),
            clock,
            told.set,
            ReaderOptions(),
        )
        reader.start()
        try:
            begun_s = clock.now_s()
            end_s = begun_s + self._settings.timeout_s
            reader.want_all(self._wants(run, slots, end_s))
            ends = _collect(reader, told, run.pages, end_s)
            took_s = clock.now_s() - begun_s
            self._check(ends)
        finally:
            if reader.close(self._settings.timeout_s):
                raise BenchError("a reading thread did not come back")
            # Whatever was exchanged among them, without the reader all are ours again.
            arena.free([*slots, *spares])
        return run.pages * self._settings.page_bytes / took_s

    def read_plain(self) -> float:
        """Bytes a second of tier 1's pages, read by as many threads without store and reader."""
        width, page_bytes = self._settings.width, self._settings.page_bytes
        slots = self._arena.take(len(self._extents))
        views = [self._arena.view(slot) for slot in slots]

        def read(number: int, _: memoryview) -> None:
            extent = self._extents[number]
            if os.preadv(extent.fd, [views[number]], extent.offset) != page_bytes:
                raise BenchError(f"page {number} could not be read")

        numbers = range(len(slots))
        portions = [numbers[start::width] for start in range(width)]
        unused = [memoryview(bytearray(page_bytes)) for _ in range(width)]
        took_s = time_reads(read, portions, unused, page_bytes)
        self._arena.free(slots)
        return len(slots) * page_bytes / took_s

    def _tiers(self, run: ReadRun, start_s: float) -> dict[int, ReadTier]:
        return {
            tier: ReadTier(self._throttle(tier, speed, start_s), self._settings.width)
            for tier, speed in run.speeds.items()
        }

    def _throttle(self, tier: int, speed: TierSpeed, start_s: float) -> Store:
        folder, latency_s, rng = self._folders[tier], self._settings.latency_s, Random(tier)
        slow = Throttle(speed.slow_bytes_per_s, latency_s)
        later = ThrottledStore(folder, slow, MonotonicClock(), rng)
        fast = Throttle(speed.bytes_per_s, latency_s)
        return SlowingStore(folder, fast, rng, later, start_s + speed.slows_at_s)

    def _wants(self, run: ReadRun, slots: tuple[int, ...], deadline_s: float) -> list[PageWant]:
        holders = sum(1 << tier for tier in run.speeds)
        return [
            PageWant(
                key=page_key(number),
                slot=slot,
                size_bytes=self._settings.page_bytes,
                tiers=holders,
                due_s=0.0,
                position=number,
                deadline_s=deadline_s,
            )
            for number, slot in enumerate(slots)
        ]

    def _check(self, ends: list[PageRead]) -> None:
        """BenchError unless every page is where its outcome says."""
        for end in ends:
            number = int.from_bytes(end.key, "big")
            content = bytes(self._arena.view(end.slot)[:NUMBER_BYTES])
            if end.end is not ReadEnd.READ or content != page_mark(number):
                raise BenchError(f"page {number}: {end.end}, failures {end.failures}")


@contextmanager
def open_stand(settings: StandSettings) -> Iterator[StoreStand]:
    """A stand whose tiers have just been written."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bb-")))
        folders = {tier: _write_folder(home / f"tier{tier}", settings) for tier in TIERS}
        for folder in folders.values():
            stack.callback(folder.close)
        extents = find_extents(home / f"tier{TIERS[0]}", settings.page_bytes, stack)
        shared = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else home
        slots = settings.pages + settings.width * len(TIERS)
        epoch = time.monotonic_ns()
        layout = ArenaLayout(slots, settings.page_bytes)
        try:
            arena = Arena(shared / f"bb-{os.getpid()}-{epoch}", layout, epoch)
        except ConfigError as error:
            raise BenchError(f"no room to read into: {error}") from error
        stack.callback(arena.close)
        yield StoreStand(settings, folders, extents, arena)


def page_key(number: int) -> bytes:
    """The key of page `number`."""
    return number.to_bytes(KEY_BYTES, "big")


def page_mark(number: int) -> bytes:
    """The first bytes of page `number`."""
    return number.to_bytes(NUMBER_BYTES, "little")


def _write_folder(path: Path, settings: StandSettings) -> DirectoryStore:
    segment_bytes = max(settings.total_bytes // 4, 4 * settings.page_bytes)
    options = DirectoryOptions(4 * (settings.total_bytes + segment_bytes), segment_bytes)
    store = DirectoryStore(path, options, Random(str(path)))
    content = bytearray(Random(0).randbytes(settings.page_bytes))
    for number in range(settings.pages):
        content[:NUMBER_BYTES] = page_mark(number)
        write = store.put(page_key(number), content, PageOrigin(b"", 0))
        if write.outcome is not WriteOutcome.WRITTEN:
            raise BenchError(f"page {number} could not be written: {write.outcome}")
    return store


def _collect(reader: Reader, told: threading.Event, pages: int, end_s: float) -> list[PageRead]:
    ends: list[PageRead] = []
    while len(ends) < pages:
        if not told.wait(max(0.0, end_s + 1 - time.monotonic())):
            raise BenchError(f"{pages - len(ends)} of {pages} pages had no outcome in time")
        told.clear()
        ends += reader.take_outcomes()
    return ends
