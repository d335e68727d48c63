"""A daemon's books with everything around them played by the test: no thread, socket or file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bana.radix_global.admin_messages import Done, Mode
from bana.radix_global.arena_layout import ArenaLayout
from bana.radix_global.daemon.books import BookRules, StoreBooks
from bana.radix_global.daemon.chores import Refreshed
from bana.radix_global.daemon.desk import Desk, DeskRules
from bana.radix_global.daemon.gear import Gear
from bana.radix_global.daemon.kept_pins import KeptPins
from bana.radix_global.daemon.limits import StoreLimits
from bana.radix_global.daemon.pin_desk import PinDesk
from bana.radix_global.keys import Namespace
from bana.radix_global.messages import PROTOCOL, Attach, Publish, Reserve
from bana.radix_global.pages import IndexLimits
from bana.radix_global.reader.board import Board
from bana.radix_global.reader.options import ReaderOptions
from bana.radix_global.reader.policies import READERS
from bana.radix_global.reader.wanting import PageRead, PageWant, Wanted
from bana.radix_global.slot_list import SlotList
from bana.radix_global.stores.store import HeldPage, PageOrigin, ReadOutcome
from bana.radix_global.tree import PrefixTree
from bana.radix_global.writer.jobs import WriteJob

SLOTS, SPARES, TIERS, PAGE_BYTES, EPOCH = 14, 3, 2, 8, 7
WIDTHS = {1: 1, 2: 2}
LIMITS = StoreLimits(
    max_owners=3,
    max_wants=3,
    reserved_pages=3,
    leased_share=0.6,
    reserved_share=0.4,
    reading_share=0.4,
    pinned_share=0.4,
)
SPACE = Namespace(
    model="m",
    revision="",
    weights_epoch="",
    dtype="f",
    layout="l",
    page_tokens=1,
    tp_rank=0,
    tp_size=1,
    first_layer=0,
    end_layer=1,
    salt="",
)


class FakeArena:
    """Slots without memory: what is in one is the key of the page that was written last."""

    path, layout, epoch = Path("/nowhere"), ArenaLayout(SLOTS, PAGE_BYTES), 7

    def __init__(self) -> None:
        self.list = SlotList(SLOTS)
        self.take, self.generations = self.list.take, [1] * SLOTS
        self.contents = [b""] * SLOTS

    @property
    def free_slots(self) -> int:
        return len(self.list)

    def free(self, slots: Sequence[int]) -> None:
        self.list.free(slots)
        for slot in slots:
            self.generations[slot] += 1

    def generation(self, slot: int) -> int:
        return self.generations[slot]


class BoardReader:
    """The reader's own decisions, with the test in the place of its threads."""

    def __init__(self, spares: Sequence[int], now: Any) -> None:
        options = ReaderOptions(max_wanted=100, stall_after_s=1.0)
        self.board = Board(WIDTHS, spares, READERS.create("completion"), options)
        self.has = set(spares)
        self._now = now
        self.hurry, self.cancel = self.board.hurry, self.board.cancel

    def want_all(self, pages: Sequence[PageWant]) -> tuple[Wanted, ...]:
        answers = self.board.want(pages, self._now())
        assert not self.has & {page.slot for page in pages}
        self.has |= {page.slot for page in pages}
        return answers


class FakeTier:
    """What a tier is believed to hold."""

    def __init__(self) -> None:
        self.keys: set[bytes] = set()

    def holds(self, key: bytes) -> bool:
        return key in self.keys


class FakeWriter:
    def __init__(self) -> None:
        self.jobs: list[WriteJob] = []

    def offer(self, job: WriteJob) -> None:
        self.jobs.append(job)


class Doubler:
    """Tier 1 for all pages, tier 2 besides for those that are read again."""

    def choose_tiers(self, key: bytes, held: int, reads: int) -> int:
        return (0b010 if reads < 2 else 0b110) & ~held

    def note_new(self, size_bytes: int) -> None: ...

    def note_read(self, size_bytes: int) -> None: ...


class Processes:
    """Every process lives; a descriptor is the pid."""

    def __init__(self) -> None:
        self.watched: set[int] = set()

    def watch(self, pid: int, start_ticks: int) -> int | None:
        self.watched.add(pid)
        return pid

    def forget(self, descriptor: int) -> None:
        self.watched.remove(descriptor)


class NoChores:
    def __init__(self, tier: int) -> None:
        self.tier = tier
        self.tickets: list[int] = []
        self.ordered: list[Any] = []
        self.is_full = False

    def order(self, chore: Any) -> bool:
        self.ordered.append(chore)
        self.tickets.append(chore.ticket)
        return True


class FakePins:
    """What is written down of pins."""

    def __init__(self, pins: Sequence[bytes]) -> None:
        self.kept = tuple(pins)

    def load(self) -> tuple[bytes, ...]:
        return self.kept

    def save(self, pins: Sequence[bytes]) -> None:
        self.kept = tuple(pins)


class Shop:
    """The books, and all that they believe to be real."""

    limits, page_bytes, epoch, space = LIMITS, PAGE_BYTES, EPOCH, SPACE

    def __init__(
        self,
        max_pages: int = 18,
        max_leases: int = 12,
        pins: Sequence[bytes] = (),
        *,
        has_tiers: bool = True,
    ) -> None:
        self.now_s = 100.0
        self.said: list[str] = []
        self.arena = FakeArena()
        spares = self.arena.take(SPARES)
        self.reader = BoardReader(spares, lambda: self.now_s)
        self.writer = FakeWriter()
        self.tiers = {1: FakeTier(), 2: FakeTier()} if has_tiers else {}
        self.index = PrefixTree(
            IndexLimits(max_pages=max_pages, tiers=TIERS, max_leases=max_leases)
        )
        gear = Gear(self.arena, spares, self.reader, self.writer, Doubler())
        self.processes = Processes()
        stores: Any = self.tiers
        rules = BookRules(EPOCH, max_pages, LIMITS)
        self.books = StoreBooks(
            rules, self.index, stores, lambda _: gear, self.processes, self.said.append
        )
        self.chores: Any = [NoChores(1), NoChores(2)]
        names = DeskRules("secret", ("arena", "one", "two"))
        self.pins = FakePins(pins)
        desk = PinDesk(self.books, KeptPins(self.pins, self.index, self.said.append))
        self.desk = Desk(names, self.books, self.chores, lambda n: Done(n, Mode.PLAN, {}, 0), desk)

    def key(self, path: str) -> bytes:
        """The page at the end of `path`, whose letters are pages."""
        return hashlib.sha256(path.encode()).digest()[:16]

    def keys(self, path: str) -> bytes:
        """All pages of `path`."""
        return b"".join(self.key(path[:end]) for end in range(1, len(path) + 1))

    def attach(self, name: str, **changes: Any) -> list[Any]:
        """Attach the client `name` on a route of that name; the answers."""
        told = {
            "protocol": PROTOCOL,
            "client": name.encode().ljust(16),
            "pid": 40 + len(self.processes.watched),
            "start_ticks": 1,
            "page_bytes": PAGE_BYTES,
            "namespace": SPACE,
            "name": name,
            **changes,
        }
        return self.hear(name, Attach(**told))

    def hear(self, name: str, request: Any) -> list[Any]:
        """What the daemon says to `name`, from its last word until it has heard `request`."""
        self.books.hear(name.encode(), request, self.now_s)
        return self.told(name)

    def told(self, name: str) -> list[Any]:
        """What is to be sent to `name`; to others it stays."""
        mine = [event for route, event in self.books.outbox if route == name.encode()]
        self.books.outbox = [each for each in self.books.outbox if each[0] != name.encode()]
        return mine

    def find_on_tier(self, path: str, tier: int = 1) -> None:
        """The pages of `path` turn out to be on `tier`."""
        ends = range(1, len(path) + 1)
        self.tiers[tier].keys |= {self.key(path[:end]) for end in ends}
        pages = tuple(
            HeldPage(
                self.key(path[:n]), PageOrigin(self.key(path[: n - 1]) if n > 1 else b"", 1), 8
            )
            for n in ends
        )
        self.desk.note_news(Refreshed(tier, pages, (), is_whole=True))

    def publish(self, name: str, path: str, after: str = "") -> list[Any]:
        """`name` reserves slots and publishes the pages of `path` behind `after`."""
        slots = self.hear(name, Reserve(len(path) - len(after)))[0].slots
        keys = self.keys(path)[16 * len(after) :]
        before = self.key(after) if after else b""
        return self.hear(name, Publish(before, keys, slots))

    def read(self, outcome: ReadOutcome = ReadOutcome.READ, pages: int = 1) -> None:
        """The reader ends so many reads, on whatever tier, and the books hear of it."""
        for _ in range(pages):
            for lane in (lane for tier in WIDTHS for lane in self.reader.board.lanes(tier)):
                if self.reader.board.next_read(lane, self.now_s) is not None:
                    self.reader.board.finish(lane, outcome, self.now_s)
                    break
        self.books.note_reads(self.take_reads(), self.now_s)

    def take_reads(self) -> list[PageRead]:
        """The outcomes of reads, whose slots the reader has no more."""
        reads = self.reader.board.take_outcomes()
        self.reader.has -= {read.slot for read in reads}
        return reads


@pytest.fixture
def shop() -> Shop:
    """A shop with room in its index."""
    return Shop(max_pages=100)


@pytest.fixture
def make_shop() -> Callable[..., Shop]:
    """A function: bounds in, a new shop out."""
    return Shop
