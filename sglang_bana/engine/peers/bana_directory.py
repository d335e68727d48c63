"""Bana's directory tier, read as the reader of a store daemon reads it: verified, into slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from mmap import mmap
from pathlib import Path
from random import Random

from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.stores.directory import DirectoryStore
from bana.radix_global.stores.options import DirectoryOptions
from bana.radix_global.stores.store import PageOrigin, ReadOutcome, WriteOutcome
from sglang_bana.engine.peers.reading import ReadPlan, WrongPage, check_pages, time_portions

SEGMENTS = 8


class BanaDirectory:
    """See Side."""

    def __init__(self, plan: ReadPlan, store: DirectoryStore) -> None:
        self._plan = plan
        self._store = store
        self._keys = [number.to_bytes(KEY_BYTES, "big") for number in range(plan.pages)]
        size = plan.shape.page_bytes
        # Mapped, hence aligned to pages, as the slots of an arena are.
        buffers = [memoryview(mmap(-1, plan.slots * size)) for _ in range(plan.max_threads)]
        self._slots = [
            [buffer[start : start + size] for start in range(0, len(buffer), size)]
            for buffer in buffers
        ]
        for number, content in enumerate(plan.list_contents()):
            write = store.put(self._keys[number], content, PageOrigin(b"", 0))
            if write.outcome is not WriteOutcome.WRITTEN or write.lost:
                raise WrongPage(f"page {number} was not written: {write.outcome}")

    def time_round(self, threads: int) -> float:
        return time_portions(self._read, self._plan.list_portions(threads))

    def check(self) -> None:
        def read_one(number: int) -> bytes:
            self._read(0, [number])
            return bytes(self._slots[0][0])

        check_pages(self._plan, read_one)

    def _read(self, thread: int, numbers: Sequence[int]) -> None:
        keys, slots, store = self._keys, self._slots[thread], self._store
        for turn, number in enumerate(numbers):
            outcome = store.read(keys[number], slots[turn % len(slots)])
            if outcome is not ReadOutcome.READ:
                raise WrongPage(f"page {number} was not read: {outcome}")


@contextmanager
def open_bana_directory(plan: ReadPlan, folder: Path) -> Iterator[BanaDirectory]:
    """A directory store in `folder` with all pages of the plan."""
    size = max(plan.total_bytes // SEGMENTS, 4 * plan.shape.page_bytes)
    options = DirectoryOptions(2 * plan.total_bytes + 4 * size, segment_bytes=size)
    store = DirectoryStore(folder, options, Random(plan.seed))
    try:
        yield BanaDirectory(plan, store)
    finally:
        store.close()
