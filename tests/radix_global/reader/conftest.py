"""A board driven by a clock that stands still: tiers of given speeds, and what they did."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from bana.radix_global.reader.board import Board
from bana.radix_global.reader.entries import Reading
from bana.radix_global.reader.options import ReaderOptions
from bana.radix_global.reader.policies import READERS
from bana.radix_global.reader.wanting import PageRead, PageWant
from bana.radix_global.stores.store import ReadOutcome

PAGE_BYTES = 100
# What a tier makes of a read begun at a time: how it ends, after how many seconds.
Serve = Callable[[Reading, float], tuple[ReadOutcome, float]]
Play = Callable[..., "Played"]
MakeWants = Callable[..., list[PageWant]]


@dataclasses.dataclass(frozen=True)
class Read:
    """One read as it went."""

    key: bytes
    tier: int
    begun_s: float
    ended_s: float


@dataclasses.dataclass
class Played:
    """All that came of one play."""

    reads: list[Read] = dataclasses.field(default_factory=list)
    outcomes: dict[bytes, PageRead] = dataclasses.field(default_factory=dict)
    ended_s: dict[bytes, float] = dataclasses.field(default_factory=dict)

    @property
    def last_s(self) -> float:
        """When the last page had its outcome."""
        return max(self.ended_s.values())


def page_key(number: int) -> bytes:
    """The key of page `number`."""
    return number.to_bytes(16, "big")


def make_wants(numbers: Iterable[int], tiers: int = 0b110, **given: Any) -> list[PageWant]:
    """Pages of one request, each in the slot of its number."""
    common = {"size_bytes": PAGE_BYTES, "tiers": tiers, "due_s": 1.0, "deadline_s": 1e6, **given}
    return [PageWant(key=page_key(n), slot=n, position=n, **common) for n in numbers]


def steady(speed: float) -> Serve:
    """A tier that gives every page at `speed` pages a second."""
    return lambda _reading, _now_s: (ReadOutcome.READ, 1 / speed)


def play(
    wants: Sequence[PageWant],
    tiers: Mapping[int, Serve],
    *,
    policy: str = "completion",
    widths: Mapping[int, int] | None = None,
    policy_options: Mapping[str, object] | None = None,
    later: Mapping[float, Sequence[PageWant]] | None = None,
    **options: Any,
) -> Played:
    """Have `wants` read from tiers that serve as told, wanted at second 0, and `later` ones."""
    widths = widths or dict.fromkeys(tiers, 1)
    spares = range(1_000_000, 1_000_000 + sum(widths.values()))
    built = READERS.create(policy, policy_options)
    board = Board(widths, list(spares), built, ReaderOptions(**options))
    return _run(board, tiers, sorted({0.0: wants, **(later or {})}.items()))


def _run(
    board: Board, tiers: Mapping[int, Serve], arrivals: list[tuple[float, Sequence[PageWant]]]
) -> Played:
    played = Played()
    ends: list[tuple[float, int, Reading, ReadOutcome]] = []
    now_s, begun, idle = 0.0, 0, {lane for tier in tiers for lane in board.lanes(tier)}
    while True:
        while arrivals and arrivals[0][0] <= now_s:
            board.want(arrivals.pop(0)[1], now_s)
        # As threads would: those that were woken look, and those that have just finished.
        wakes = board.take_wakes()
        for lane in [lane for tier in tiers for lane in board.lanes(tier)]:
            if lane.reading is not None or (lane in idle and not wakes >> lane.tier & 1):
                continue
            reading = board.next_read(lane, now_s)
            if reading is None:
                idle.add(lane)
                continue
            idle.discard(lane)
            outcome, took_s = tiers[lane.tier](reading, now_s)
            begun += 1
            heapq.heappush(ends, (now_s + took_s, begun, reading, outcome))
        for outcome_of in board.take_outcomes():
            assert outcome_of.key not in played.outcomes
            played.outcomes[outcome_of.key] = outcome_of
            played.ended_s[outcome_of.key] = now_s
        next_s = min(board.look_at_s, ends[0][0] if ends else math.inf)
        next_s = min(next_s, arrivals[0][0] if arrivals else math.inf)
        if math.isinf(next_s):
            return played
        now_s = next_s
        board.expire(now_s)
        while ends and ends[0][0] <= now_s:
            _, _, reading, outcome = heapq.heappop(ends)
            played.reads.append(Read(reading.key, reading.lane.tier, reading.begun_s, now_s))
            board.finish(reading.lane, outcome, now_s)


@pytest.fixture(name="play")
def play_fixture() -> Play:
    """The function `play`."""
    return play


@pytest.fixture(name="make_wants")
def make_wants_fixture() -> MakeWants:
    """The function `make_wants`."""
    return make_wants


@pytest.fixture(name="steady")
def steady_fixture() -> Callable[[float], Serve]:
    """The function `steady`."""
    return steady
