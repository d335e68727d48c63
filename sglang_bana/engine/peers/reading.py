"""Which pages are read, by how many threads, and how long that takes.

Imports nothing of bana's and no SGLang: LMCache's side runs it in an environment of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Protocol

import msgspec

ELEMENT_BYTES = 2  # bfloat16
NUMBER_BYTES = 8
DEADLINE_S = 300.0
CHECKED_PAGES = 5


class WrongPage(Exception):
    """A side did not bring the page that it was asked for: what it took to do so says nothing."""


class PageShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys and values of `tokens` tokens of a model."""

    layers: int
    heads: int
    head_dim: int
    tokens: int = 16

    @property
    def page_bytes(self) -> int:
        """The size of such a page."""
        return 2 * self.layers * self.tokens * self.heads * self.head_dim * ELEMENT_BYTES


class ReadPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`total_bytes` in pages of one shape; each thread reads into `buffer_bytes` of its own."""

    shape: PageShape
    total_bytes: int
    buffer_bytes: int
    max_threads: int
    seed: int

    @property
    def pages(self) -> int:
        """How many pages there are."""
        return self.total_bytes // self.shape.page_bytes

    @property
    def slots(self) -> int:
        """How many pages a thread holds; the next one takes the place of the oldest."""
        return self.buffer_bytes // self.shape.page_bytes

    def list_portions(self, threads: int) -> list[list[int]]:
        """Which pages each thread reads, in its order; the same for every side."""
        order = list(range(self.pages))
        Random(self.seed).shuffle(order)
        return [order[start::threads] for start in range(threads)]

    def list_contents(self) -> Iterator[bytes]:
        """The bytes of each page, which differ from page to page."""
        common = Random(self.seed).randbytes(self.shape.page_bytes)[NUMBER_BYTES:]
        for number in range(self.pages):
            yield number.to_bytes(NUMBER_BYTES, "little") + common


class Side(Protocol):
    """One store with all pages of a plan written to it, and warm in the page cache."""

    def time_round(self, threads: int) -> float:
        """Seconds in which so many threads read every page once."""

    def check(self) -> None:
        """WrongPage unless what is read is what was written."""


def time_portions(
    read: Callable[[int, Sequence[int]], None], portions: Sequence[Sequence[int]]
) -> float:
    """Seconds from the common start until the last thread has read its portion."""
    start, end = (threading.Barrier(len(portions) + 1, timeout=DEADLINE_S) for _ in range(2))
    faults: list[BaseException] = []

    def work(thread: int, portion: Sequence[int]) -> None:
        try:
            start.wait()
            read(thread, portion)
            end.wait()
        except BaseException as fault:
            faults.append(fault)
            end.abort()

    workers = [threading.Thread(target=work, args=pair) for pair in enumerate(portions)]
    for worker in workers:
        worker.start()
    try:
        start.wait()
        begun_s = time.perf_counter()
        end.wait()
        took_s = time.perf_counter() - begun_s
    except threading.BrokenBarrierError:
        raise faults[0] if faults else WrongPage(f"no end after {DEADLINE_S:g} s") from None
    finally:
        for worker in workers:
            worker.join(DEADLINE_S)
    return took_s


def check_pages(plan: ReadPlan, read_one: Callable[[int], bytes]) -> None:
    """Hold some pages, the first and the last included, against their contents."""
    step = max(1, (plan.pages - 1) // (CHECKED_PAGES - 1))
    for number, content in enumerate(plan.list_contents()):
        if (number % step == 0 or number == plan.pages - 1) and read_one(number) != content:
            raise WrongPage(f"page {number} was read as something else")
