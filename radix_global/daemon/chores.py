"""What takes long on a tier, besides reading and writing pages: one thread a tier does it.

    start ─▶ refresh until whole (recovery) ─▶ every refresh_s: refresh
                                            └▶ orders: count, sweep, verify

A storage that stalls holds up its own chores only. News is bounded: whoever takes none is waited
for, and told the rest later.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from bana.radix_global.admin_messages import Mode
from bana.radix_global.stores.store import (
    HeldPage,
    Moment,
    ReadOutcome,
    RefreshOutcome,
    Store,
    WriteOutcome,
)
from bana.slo.clock import DatingClock

MAX_ORDERS = 8
MAX_NEWS = 16
NEWS_PAGES = 1024
POLL_S = 0.1
CUT_SHORT = "cut_short"
_BAD = frozenset({ReadOutcome.SHORT, ReadOutcome.CORRUPT, ReadOutcome.WRONG_LENGTH})


class CountPages(msgspec.Struct, frozen=True):
    """How much does the tier hold of each namespace?"""

    ticket: int


class Sweep(msgspec.Struct, frozen=True):
    """Give up the pages of a namespace, or all; those that came `older_s` ago, or at any time."""

    ticket: int
    mode: Mode
    namespace: int | None = None
    older_s: float | None = None


class VerifyPages(msgspec.Struct, frozen=True):
    """Read every page, no faster than so, and give up the bad ones."""

    ticket: int
    mode: Mode
    bytes_per_s: float


Chore: TypeAlias = CountPages | Sweep | VerifyPages


class Refreshed(msgspec.Struct, frozen=True):
    """What was found to have come and gone; `is_whole` once nothing more is to be found."""

    tier: int
    found: tuple[HeldPage, ...]
    lost: tuple[bytes, ...]
    is_whole: bool


class Gone(msgspec.Struct, frozen=True):
    """Pages that a chore has given up."""

    tier: int
    keys: tuple[bytes, ...]


class ChoreDone(msgspec.Struct, frozen=True):
    """The end of an order: pages by outcome, or by namespace, and bytes by the same names.

    CUT_SHORT among the outcomes says that the tier failed before the end.
    """

    tier: int
    ticket: int
    pages: dict[str, int]
    size_bytes: dict[str, int]


News: TypeAlias = Refreshed | Gone | ChoreDone


class TierChores:
    """The chores of tier `tier`; `notify` is called, from the thread, when there is news."""

    def __init__(
        self,
        tier: int,
        store: Store,
        clock: DatingClock,
        refresh_s: float,
        notify: Callable[[], None],
    ) -> None:
        self.tier = tier
        self._store = store
        self._clock = clock
        self._refresh_s = refresh_s
        self._notify = notify
        self._orders: queue.Queue[Chore] = queue.Queue(MAX_ORDERS)
        self._news: queue.Queue[News] = queue.Queue(MAX_NEWS)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"chores-{tier}", daemon=True)

    def start(self) -> None:
        """Begin with the recovery of what is there."""
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """Whether it can be ordered nothing more now."""
        return self._orders.full()

    def order(self, chore: Chore) -> bool:
        """Have it done; False where too much is to be done already."""
        try:
            self._orders.put_nowait(chore)
        except queue.Full:
            return False
        return True

    def take_news(self) -> News | None:
        """The next piece of news; never blocks."""
        try:
            return self._news.get_nowait()
        except queue.Empty:
            return None

    def close(self, timeout_s: float) -> bool:
        """End the thread; False where its storage keeps it longer than `timeout_s`."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        next_s = self._clock.now_s()
        while not self._closing.is_set():
            if self._clock.now_s() >= next_s:
                outcome = self._refresh()
                is_partial = outcome is RefreshOutcome.PARTIAL
                next_s = self._clock.now_s() + (0 if is_partial else self._refresh_s)
            try:
                chore = self._orders.get(timeout=min(POLL_S, max(0, next_s - self._clock.now_s())))
            except queue.Empty:
                continue
            self._do(chore)

    def _refresh(self) -> RefreshOutcome:
        try:
            refresh = self._store.refresh()
        except Exception:
            # A store answers expected faults; whatever else happens must not cost the thread.
            return RefreshOutcome.FAILED
        is_whole = refresh.outcome is RefreshOutcome.WHOLE
        if refresh.lost:
            self._tell(Refreshed(self.tier, (), refresh.lost, is_whole=False))
        for start in range(0, len(refresh.found), NEWS_PAGES):
            found = refresh.found[start : start + NEWS_PAGES]
            self._tell(Refreshed(self.tier, found, (), is_whole=False))
        if is_whole:
            self._tell(Refreshed(self.tier, (), (), is_whole=True))
        return refresh.outcome

    def _do(self, chore: Chore) -> None:
        pages: Counter[str] = Counter()
        size_bytes: Counter[str] = Counter()
        try:
            done = self._sweep(chore) if isinstance(chore, Sweep) else self._go_through(chore)
            for page, outcome in done:
                pages[outcome] += 1
                size_bytes[outcome] += page.size_bytes
        except Exception:
            # As above. Whoever asked sees that it was cut short, and is not left waiting.
            pages[CUT_SHORT] = 1
        self._tell(ChoreDone(self.tier, chore.ticket, dict(pages), dict(size_bytes)))

    def _go_through(self, chore: CountPages | VerifyPages) -> Iterator[tuple[HeldPage, str]]:
        """Every page that the chore is about, and what became of it."""
        gone: list[bytes] = []
        for page in self._store.pages():
            if self._closing.is_set():
                return
            match chore:
                case CountPages():
                    outcome = str(page.origin.namespace)
                case VerifyPages():
                    outcome = self._verify(page, chore)
            if not isinstance(chore, CountPages) and not self._store.holds(page.key):
                gone.append(page.key)
            if len(gone) >= NEWS_PAGES:
                self._tell(Gone(self.tier, tuple(gone)))
                gone.clear()
            yield page, outcome
        if gone:
            self._tell(Gone(self.tier, tuple(gone)))

    def _sweep(self, chore: Sweep) -> Iterator[tuple[HeldPage, str]]:
        """Every page that is to go, and what became of it."""
        chosen = {page.key: page for page in self._choose(chore)}
        if chore.mode is Mode.PLAN:
            yield from ((page, WriteOutcome.DROPPED) for page in chosen.values())
            return
        gone: list[bytes] = []
        for write in self._store.drop_many(tuple(chosen)):
            gone += write.lost
            while len(gone) >= NEWS_PAGES:
                self._tell(Gone(self.tier, tuple(gone[:NEWS_PAGES])))
                del gone[:NEWS_PAGES]
            # Pages that had to make room for a mark are lost, but nobody asked for that.
            found = (chosen.pop(key, None) for key in write.lost)
            yield from ((page, write.outcome) for page in found if page is not None)
            if self._closing.is_set():
                return
        if gone:
            self._tell(Gone(self.tier, tuple(gone)))

    def _choose(self, chore: Sweep) -> Iterator[HeldPage]:
        if chore.older_s is None:
            pages = self._store.pages()
        else:
            now_s, date_s = self._clock.now_s(), self._clock.date_s()
            moment = Moment(now_s - chore.older_s, date_s - chore.older_s)
            pages = self._store.pages_before(moment)
        return (page for page in pages if chore.namespace in (None, page.origin.namespace))

    def _verify(self, page: HeldPage, chore: VerifyPages) -> str:
        if chore.mode is Mode.PLAN:
            return ReadOutcome.READ
        begun_s = self._clock.now_s()
        outcome = self._store.read(page.key, memoryview(bytearray(page.size_bytes)))
        if outcome in _BAD:
            self._store.drop(page.key)
        self._wait_until(begun_s + page.size_bytes / chore.bytes_per_s)
        return outcome

    def _wait_until(self, end_s: float) -> None:
        while (left_s := end_s - self._clock.now_s()) > 0 and not self._closing.is_set():
            self._clock.sleep(min(left_s, POLL_S))

    def _tell(self, news: News) -> None:
        while not self._closing.is_set():
            try:
                self._news.put(news, timeout=POLL_S)
            except queue.Full:
                continue
            self._notify()
            return
