"""What a tier's chores find and do, in their own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from bana.radix_global.admin_messages import Mode
from bana.radix_global.daemon.chores import (
    CUT_SHORT,
    MAX_ORDERS,
    ChoreDone,
    CountPages,
    Gone,
    News,
    Refreshed,
    Sweep,
    TierChores,
    VerifyPages,
)
from bana.radix_global.stores.faulty import Fault, FaultOptions, FaultyStore
from bana.radix_global.stores.memory import MemoryOptions, MemoryStore
from bana.radix_global.stores.store import HeldPage, PageOrigin, Refresh, RefreshOutcome
from bana.slo.clock import ManualClock

DEADLINE_S = 20.0


class QuickClock:
    """Time passes only by sleeping, which takes none."""

    def __init__(self) -> None:
        self.slept_s = 0.0

    def now_s(self) -> float:
        return self.slept_s

    def sleep(self, duration_s: float) -> None:
        self.slept_s += duration_s

    def date_s(self) -> float:
        return 1e9 + self.slept_s


class Scripted:
    """A store whose refreshes are told beforehand; then there is nothing new."""

    def __init__(self, inner: Any, refreshes: list[Refresh]) -> None:
        self._inner = inner
        self._refreshes = refreshes

    def refresh(self) -> Refresh:
        return self._refreshes.pop(0) if self._refreshes else Refresh(RefreshOutcome.FAILED)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


@pytest.fixture
def store() -> MemoryStore:
    """Six pages of two namespaces."""
    store = MemoryStore(MemoryOptions(2**20), ManualClock())
    for number in range(6):
        store.put(key(number), b"%d" % number * 100, PageOrigin(b"", number % 2))
    return store


@pytest.fixture
def work() -> Iterator[Callable[..., Any]]:
    """A function: a store in, its running chores and a function that waits for news out."""
    running: list[TierChores] = []

    def start(store: Any) -> tuple[TierChores, Callable[[type], list[News]], QuickClock]:
        bell, clock = threading.Semaphore(0), QuickClock()
        chores = TierChores(1, store, clock, 3600.0, bell.release)
        running.append(chores)
        chores.start()

        def await_news(kind: type) -> list[News]:
            """All news up to the first of that kind."""
            heard: list[News] = []
            while not heard or not isinstance(heard[-1], kind):
                assert bell.acquire(timeout=DEADLINE_S), heard
                news = chores.take_news()
                assert news is not None
                heard.append(news)
            return heard

        return chores, await_news, clock

    yield start
    for chores in running:
        assert chores.close(DEADLINE_S)


def test_it_begins_with_what_is_there(work: Callable[..., Any], store: MemoryStore) -> None:
    pages = tuple(HeldPage(key(n), PageOrigin(b"", 1), 100) for n in range(3))
    told = [
        Refresh(RefreshOutcome.PARTIAL, pages[:2], (key(9),)),
        Refresh(RefreshOutcome.WHOLE, pages[2:]),
    ]
    _, await_news, _ = work(Scripted(store, told))
    heard: list[Any] = []
    while not heard or not heard[-1].is_whole:
        heard += await_news(Refreshed)
    assert [page for news in heard for page in news.found] == list(pages)
    assert [lost for news in heard for lost in news.lost] == [key(9)]


def test_pages_are_counted_by_namespace(work: Callable[..., Any], store: MemoryStore) -> None:
    chores, await_news, _ = work(store)
    assert chores.order(CountPages(5))
    done = await_news(ChoreDone)[-1]
    assert done == ChoreDone(1, 5, {"0": 3, "1": 3}, {"0": 300, "1": 300})


def test_a_plan_changes_nothing(work: Callable[..., Any], store: MemoryStore) -> None:
    chores, await_news, _ = work(store)
    chores.order(Sweep(5, Mode.PLAN, None))
    assert await_news(ChoreDone)[-1].pages == {"dropped": 6}
    assert len(store.pages()) == 6


def test_a_sweep_gives_up_one_namespace_and_says_so(
    work: Callable[..., Any], store: MemoryStore
) -> None:
    chores, await_news, _ = work(store)
    chores.order(Sweep(5, Mode.CARRY_OUT, 1))
    heard = await_news(ChoreDone)
    gone = {k for news in heard if isinstance(news, Gone) for k in news.keys}
    assert gone == {key(1), key(3), key(5)}
    assert heard[-1].size_bytes == {"dropped": 300}
    assert len(store.pages()) == 3


def test_a_sweep_may_be_about_what_came_long_ago(work: Callable[..., Any]) -> None:
    clock = ManualClock()
    store = MemoryStore(MemoryOptions(2**20), clock)
    chores, await_news, pace = work(store)
    for number in range(4):
        store.put(key(number), b"page", PageOrigin(b"", number % 2))
        clock.advance(10.0)
    pace.sleep(clock.now_s())
    chores.order(Sweep(5, Mode.PLAN, None, 20.0))
    assert await_news(ChoreDone)[-1].pages == {"dropped": 2}
    assert len(store.pages()) == 4
    chores.order(Sweep(6, Mode.CARRY_OUT, 1, 20.0))
    heard = await_news(ChoreDone)
    assert heard[-1].pages == {"dropped": 1}
    assert [news.keys for news in heard if isinstance(news, Gone)] == [(key(1),)]
    assert not store.holds(key(1))


def test_verifying_drops_bad_pages_at_a_bounded_rate(
    work: Callable[..., Any], store: MemoryStore
) -> None:
    clock = QuickClock()
    always = FaultOptions({Fault.CORRUPT: 1.0})

    faulty = FaultyStore(store, always, clock, Random(0))
    chores, await_news, pace = work(faulty)
    chores.order(VerifyPages(5, Mode.CARRY_OUT, 100.0))
    heard = await_news(ChoreDone)
    assert heard[-1].pages == {"corrupt": 6}
    assert store.pages() == []
    assert pace.slept_s == pytest.approx(6.0)


def test_whole_pages_stay(work: Callable[..., Any], store: MemoryStore) -> None:
    chores, await_news, _ = work(store)
    chores.order(VerifyPages(5, Mode.CARRY_OUT, 1e9))
    assert await_news(ChoreDone)[-1].pages == {"read": 6}
    assert len(store.pages()) == 6


class Exploding(Scripted):
    """A store that fails in a way that no store should."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner, [])

    def refresh(self) -> Refresh:
        raise RuntimeError("a fault of the store's own")

    def holds(self, key: bytes) -> bool:
        raise RuntimeError("another one")


def test_a_store_that_raises_costs_no_thread_and_leaves_nobody_waiting(
    work: Callable[..., Any], store: MemoryStore
) -> None:
    chores, await_news, _ = work(Exploding(store))
    for ticket in range(2):
        chores.order(VerifyPages(ticket, Mode.CARRY_OUT, 1e9))
        done = await_news(ChoreDone)[-1]
        assert (done.ticket, done.pages) == (ticket, {CUT_SHORT: 1})


def test_orders_are_bounded(store: MemoryStore) -> None:
    idle = TierChores(1, store, QuickClock(), 1.0, lambda: None)
    taken = [idle.order(CountPages(n)) for n in range(MAX_ORDERS + 1)]
    assert taken == [True] * MAX_ORDERS + [False]
