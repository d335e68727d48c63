"""LMCache's LocalDiskBackend, in a process of LMCache's own environment.

Started by `lmcache_disk` as `python -m sglang_bana.engine.peers.lmcache_process FD`; FD is one end
of a pipe that carries JSON. What it imports of LMCache is there in that environment only.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import torch

from sglang_bana.engine.peers.reading import ReadPlan, WrongPage, check_pages, time_portions

GIB = 2**30
ALIGNMENT_BYTES = 4096
LOT_PAGES = 32
PUT_DEADLINE_S = 60.0
STOP_DEADLINE_S = 30.0


class Setup(msgspec.Struct, frozen=True):
    """The first message: what to write, and where."""

    plan: ReadPlan
    folder: str


class Ready(msgspec.Struct, frozen=True):
    """Its answer: all pages are written, and some were read and held against their contents."""

    version: str


class Round(msgspec.Struct, frozen=True):
    """Each later message: read every page once."""

    threads: int


class Took(msgspec.Struct, frozen=True):
    """Its answer."""

    seconds: float


class LmcachePages:
    """All pages of a plan on one disk, read as LMCache itself reads: one by one, or many at once.

    `open_disk` builds a LocalDiskBackend that reads with so many threads. What was read is held
    until as many pages as bana has slots have come after it.
    """

    def __init__(self, plan: ReadPlan, open_disk: Callable[[int], Any]) -> None:
        from lmcache.utils import CacheEngineKey

        self._plan = plan
        self._open_disk = open_disk
        self._keys = [
            CacheEngineKey("model", 1, 0, number, torch.bfloat16) for number in range(plan.pages)
        ]
        self._held: deque[Any] = deque()
        self._disks = {1: open_disk(1)}
        for number, content in enumerate(plan.list_contents()):
            self._put(number, content)

    def time_round(self, threads: int) -> float:
        """Seconds in which so many threads read every page once."""
        disk = self._find_disk(threads)
        read = partial(self._read_one_by_one if threads == 1 else self._read_many, disk, threads)
        return time_portions(lambda _, numbers: read(numbers), self._plan.list_portions(1))

    def check(self) -> None:
        """WrongPage unless what is read is what was written."""

        def read_one(number: int) -> bytes:
            self._read_one_by_one(self._disks[1], 1, [number])
            return bytes(self._held[-1].byte_array)

        check_pages(self._plan, read_one)

    def close(self) -> None:
        """End the threads of all backends."""
        for disk in self._disks.values():
            disk.close()

    def _find_disk(self, threads: int) -> Any:
        """A backend for each number of threads; all but the first are told what the first wrote."""
        from lmcache.v1.memory_management import MemoryFormat

        if threads not in self._disks:
            self._disks[threads] = disk = self._open_disk(threads)
            size = self._plan.shape.page_bytes
            for key in self._keys:
                disk.insert_key(key, size, self._dimensions(), torch.bfloat16, MemoryFormat.KV_2LTD)
        return self._disks[threads]

    def _dimensions(self) -> torch.Size:
        shape = self._plan.shape
        return torch.Size([2, shape.layers, shape.tokens, shape.heads * shape.head_dim])

    def _put(self, number: int, content: bytes) -> None:
        from lmcache.v1.memory_management import MemoryFormat

        disk = self._disks[1]
        page = disk.local_cpu_backend.allocate(
            self._dimensions(), torch.bfloat16, MemoryFormat.KV_2LTD
        )
        memoryview(page.byte_array).cast("B")[:] = content
        is_written = threading.Event()
        disk.submit_put_task(
            self._keys[number], page, on_complete_callback=lambda _: is_written.set()
        )
        page.ref_count_down()
        if not is_written.wait(PUT_DEADLINE_S):
            raise WrongPage(f"page {number} was not written within {PUT_DEADLINE_S:g} s")

    def _read_one_by_one(self, disk: Any, threads: int, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._free_all_but(self._plan.slots * threads - 1)
            self._hold([disk.get_blocking(self._keys[number])])

    def _read_many(self, disk: Any, threads: int, numbers: Sequence[int]) -> None:
        slots = self._plan.slots * threads
        lot = min(LOT_PAGES, slots // 2)
        for start in range(0, len(numbers), lot):
            self._free_all_but(slots - lot)
            keys = [self._keys[number] for number in numbers[start : start + lot]]
            self._hold(disk.batched_get_blocking(keys))

    def _hold(self, pages: Sequence[Any]) -> None:
        if any(page is None for page in pages):
            raise WrongPage("a page was not read")
        self._held.extend(pages)

    def _free_all_but(self, count: int) -> None:
        while len(self._held) > count:
            self._held.popleft().ref_count_down()


@contextmanager
def open_pages(setup: Setup) -> Iterator[LmcachePages]:
    """Backends with their defaults, but no cache in memory before them, which would answer."""
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.metadata import LMCacheMetadata
    from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
    from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend

    plan, shape = setup.plan, setup.plan.shape
    # Its memory holds what all threads hold, some pages more, and what it aligns them to.
    page_bytes = shape.page_bytes + ALIGNMENT_BYTES
    memory_bytes = (plan.slots + 2) * plan.max_threads * page_bytes

    def configure(threads: int) -> LMCacheEngineConfig:
        return LMCacheEngineConfig.from_dict(
            {
                "chunk_size": shape.tokens,
                "local_cpu": False,
                "max_local_cpu_size": memory_bytes / GIB,
                "local_disk": setup.folder,
                "max_local_disk_size": plan.total_bytes * 2 / GIB,
                "extra_config": {"disk_io_threads": threads},
            }
        )

    metadata = LMCacheMetadata(
        model_name="model",
        world_size=1,
        local_world_size=1,
        worker_id=0,
        local_worker_id=0,
        kv_dtype=torch.bfloat16,
        kv_shape=(shape.layers, 2, shape.tokens, shape.heads, shape.head_dim),
    )
    loop = asyncio.new_event_loop()
    runner = threading.Thread(target=loop.run_forever, daemon=True)
    runner.start()
    memory = LocalCPUBackend(configure(1), metadata, dst_device="cpu")

    def open_disk(threads: int) -> LocalDiskBackend:
        config = configure(threads)
        return LocalDiskBackend(config, loop, memory, dst_device="cpu", metadata=metadata)

    pages = LmcachePages(plan, open_disk)
    try:
        yield pages
    finally:
        pages.close()
        loop.call_soon_threadsafe(loop.stop)
        runner.join(STOP_DEADLINE_S)


def serve(pipe: Connection) -> None:
    """Answer rounds until the other end is closed."""
    setup = msgspec.json.decode(pipe.recv_bytes(), type=Setup)
    with open_pages(setup) as pages:
        pages.check()
        version = importlib.metadata.version("lmcache")
        pipe.send_bytes(msgspec.json.encode(Ready(version)))
        while True:
            try:
                message = pipe.recv_bytes()
            except EOFError:
                return
            threads = msgspec.json.decode(message, type=Round).threads
            pipe.send_bytes(msgspec.json.encode(Took(pages.time_round(threads))))


def main() -> None:
    """Serve the pipe whose descriptor the command line names."""
    torch.set_num_threads(1)
    with Connection(int(sys.argv[1])) as pipe:
        serve(pipe)


if __name__ == "__main__":
    main()
