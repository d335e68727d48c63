"""What the daemon's books leave to others: memory, reading, writing, watching processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from bana.radix_global.arena_layout import ArenaLayout
from bana.radix_global.pages import ARENA
from bana.radix_global.reader.wanting import PageWant, Wanted
from bana.radix_global.writer.jobs import WriteJob

ARENA_BIT = 1 << ARENA


class SlotArena(Protocol):
    """See arena.Arena."""

    path: Path
    layout: ArenaLayout
    epoch: int

    @property
    def free_slots(self) -> int: ...

    def take(self, count: int) -> tuple[int, ...]: ...

    def free(self, slots: Sequence[int]) -> None: ...

    def generation(self, slot: int) -> int: ...


class PageReader(Protocol):
    """Reads pages into slots; every page taken comes back as one PageRead, later.

    It has slots of its own besides, and may give one of them back in exchange.
    """

    def want_all(self, pages: Sequence[PageWant]) -> tuple[Wanted, ...]:
        """StoreError, and none taken, where too many pages are wanted."""
        ...

    def hurry(self, key: bytes, due_s: float) -> object:
        """The page is needed earlier; an unknown one is none."""
        ...

    def cancel(self, key: bytes) -> object:
        """Nobody wants the page any more; its outcome comes all the same, soon."""
        ...


class PageWriter(Protocol):
    """Writes pages to tiers when there is time; one PageWritten for each tier of a job, later."""

    def offer(self, job: WriteJob) -> None:
        """StoreError where it is closed."""
        ...


class Placer(Protocol):
    """Chooses where pages are kept, and follows the traffic for that."""

    def choose_tiers(self, key: bytes, held: int, reads: int) -> int:
        """The mask of tiers that the page is to be written to, which those of `held` have.

        `reads` is how often it was asked for since it came into the arena.
        """
        ...

    def note_new(self, size_bytes: int) -> None:
        """So much was published that no tier holds."""
        ...

    def note_read(self, size_bytes: int) -> None:
        """So much was read from tiers."""
        ...


class ProcessWatch(Protocol):
    """Proves that processes have died."""

    def watch(self, pid: int, start_ticks: int) -> int | None:
        """A descriptor that is readable once that process has died, None where it has already."""
        ...

    def forget(self, descriptor: int) -> None:
        """Close it."""
        ...


class Gear(msgspec.Struct, frozen=True):
    """All of it, made when the first client tells how large pages are.

    `spares` are the slots of the arena that are the reader's own.
    """

    arena: SlotArena
    spares: tuple[int, ...]
    reader: PageReader
    writer: PageWriter
    placer: Placer


class MakeGear(Protocol):
    """ConfigError where there is no room for an arena of such slots."""

    def __call__(self, slot_bytes: int) -> Gear: ...
