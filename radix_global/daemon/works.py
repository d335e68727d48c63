"""The arena and the threads that read and write, built once the size of a page is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from bana.radix_global.arena import Arena
from bana.radix_global.arena_layout import fit_layout
from bana.radix_global.daemon.gear import Gear
from bana.radix_global.daemon.placing import PolicyPlacer
from bana.radix_global.daemon.weather import ReadWeather, read_weather
from bana.radix_global.reader.options import ReaderOptions
from bana.radix_global.reader.policies import READERS
from bana.radix_global.reader.reader import Reader, ReadTier, SlotAccess
from bana.radix_global.reader.report import TierReport
from bana.radix_global.reader.wanting import PageRead, PageWant, Wanted
from bana.radix_global.stores.store import Store
from bana.radix_global.writer.jobs import PageWritten, WriteJob, WriteReport
from bana.radix_global.writer.options import WriterOptions
from bana.radix_global.writer.placement import PLACEMENTS
from bana.radix_global.writer.writer import Writer
from bana.slo.clock import Clock
from bana.slo.errors import ConfigError, StoreError

# What is read into must be a small part of the arena, or nothing could stay there.
SLOTS_PER_READ = 4


class Tier(msgspec.Struct, frozen=True):
    """One tier: its store, what it is called, how many threads read from it."""

    store: Store
    name: str
    width: int


class WorksPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to build. `slot_bytes` 0 takes the size of the first client's pages."""

    arena_path: Path
    arena_bytes: int
    slot_bytes: int
    epoch: int
    reader: str
    reader_options: Mapping[str, object]
    placement: str
    placement_options: Mapping[str, object]
    writer: WriterOptions = WriterOptions()


class Works:
    """Everything with threads of its own; `notify` is called from them when there are outcomes."""

    def __init__(
        self,
        plan: WorksPlan,
        tiers: Mapping[int, Tier],
        clock: Clock,
        notify: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._tiers = tiers
        self._clock = clock
        self._notify = notify
        # Policies are built at once, so that a wrong option ends the start.
        self._read_policy = READERS.create(plan.reader, plan.reader_options)
        self._placement = PLACEMENTS.create(plan.placement, plan.placement_options)
        self._arena: Arena | None = None
        self._reader: Reader | None = None
        self._writer: Writer | None = None

    @property
    def arena_bytes(self) -> int:
        """How large the arena may be."""
        return self._plan.arena_bytes

    def make_gear(self, slot_bytes: int) -> Gear:
        """See MakeGear."""
        plan = self._plan
        layout = fit_layout(plan.arena_bytes, plan.slot_bytes or slot_bytes)
        spare_slots = sum(tier.width for tier in self._tiers.values())
        if layout.slots < SLOTS_PER_READ * (spare_slots + 1):
            raise ConfigError(
                f"an arena of {layout.slots} pages of {layout.slot_bytes} bytes for {spare_slots} "
                f"reads at once, allowed: >= {SLOTS_PER_READ * (spare_slots + 1)} pages; raise "
                "store.arena_bytes"
            )
        arena = self._arena = Arena(plan.arena_path, layout, plan.epoch)
        if not self._tiers:
            nothing = NoTiers()
            return Gear(arena, (), nothing, nothing, nothing)
        return self._man(arena, arena.take(spare_slots))

    def take_reads(self) -> list[PageRead]:
        """What the reader has done since the last call."""
        return self._reader.take_outcomes() if self._reader is not None else []

    def take_written(self) -> list[PageWritten]:
        """What the writer has done since the last call."""
        return self._writer.take_outcomes() if self._writer is not None else []

    def read_reports(self) -> tuple[TierReport, ...]:
        """How reading from each tier fares; none before there is an arena."""
        return self._reader.report() if self._reader is not None else ()

    def write_reports(self) -> tuple[WriteReport, ...]:
        """How writing to each tier fares; none before there is an arena."""
        return self._writer.report() if self._writer is not None else ()

    def weather(self) -> ReadWeather:
        """The same for those who plan what to read."""
        names = {number: tier.name for number, tier in self._tiers.items()}
        return read_weather(self.read_reports(), names)

    def close(self, timeout_s: float) -> int:
        """End the threads and take the arena's name away; how many threads are stuck."""
        end_s = self._clock.now_s() + timeout_s
        stuck = 0
        for worker in (self._reader, self._writer):
            if worker is not None:
                stuck += worker.close(max(0.0, end_s - self._clock.now_s()))
        if self._arena is not None:
            self._arena.close()
        return stuck

    def _man(self, arena: Arena, spares: tuple[int, ...]) -> Gear:
        """The threads around a new arena."""
        reader = self._reader = Reader(
            {number: ReadTier(tier.store, tier.width) for number, tier in self._tiers.items()},
            SlotAccess(arena.view, spares),
            self._read_policy,
            self._clock,
            self._notify,
            ReaderOptions(max_wanted=arena.layout.slots),
        )
        writer = self._writer = Writer(
            {number: tier.store for number, tier in self._tiers.items()},
            arena.view,
            reader.is_wanted,
            self._clock,
            self._notify,
            self._plan.writer,
        )
        reader.start()
        writer.start()
        placer = PolicyPlacer(self._placement, reader.report, writer.report, self._clock)
        return Gear(arena, spares, reader, writer, placer)


class NoTiers:
    """An arena alone: nothing is ever read from a tier, or written to one."""

    def want_all(self, pages: Sequence[PageWant]) -> tuple[Wanted, ...]:
        """See PageReader."""
        if pages:
            raise StoreError("there are no tiers to read from; recompute the pages")
        return ()

    def hurry(self, key: bytes, due_s: float) -> bool:
        """See PageReader."""
        return False

    def cancel(self, key: bytes) -> bool:
        """See PageReader."""
        return False

    def offer(self, job: WriteJob) -> None:
        """See PageWriter."""
        raise StoreError("there are no tiers to write to; configure some")

    def choose_tiers(self, key: bytes, held: int, reads: int) -> int:
        """See Placer."""
        return 0

    def note_new(self, size_bytes: int) -> None:
        """See Placer."""

    def note_read(self, size_bytes: int) -> None:
        """See Placer."""
