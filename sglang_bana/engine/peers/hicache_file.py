"""SGLang's HiCacheFile: a file a page, with and without what takes a page to its place.

*placed*: `batch_get_v2` into SGLang's own host pool, from where it loads the device.
*bare*: `get` into a tensor that is used over and over, which no caller of it in SGLang does.
Neither verifies anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import (
    STORAGE_BATCH_SIZE,
    HiCacheFile,
    HiCacheStorageConfig,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.pool_host import base
from sglang.srt.mem_cache.pool_host.mha import get_mha_host_pool_cls
from torch import Tensor

from sglang_bana.engine.peers.reading import ReadPlan, WrongPage, check_pages, time_portions

# Of SGLang's layouts the one in which a page from a file is placed soonest.
LAYOUT = "page_first"


class HicacheFolder:
    """All pages of a plan as files of one HiCacheFile, and a host pool for all threads."""

    def __init__(self, plan: ReadPlan, folder: Path) -> None:
        self.plan = plan
        self.file = HiCacheFile(_describe_storage(), file_path=str(folder))
        self.pool = _build_host_pool(plan)
        self.file.register_mem_host_pool_v2(self.pool, PoolName.KV)
        self.names = [f"{number:064x}" for number in range(plan.pages)]
        for number, content in enumerate(plan.list_contents()):
            page = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            if not self.file.set(self.names[number], page):
                raise WrongPage(f"page {number} was not written to HiCacheFile")


class HicachePlaced:
    """See Side."""

    def __init__(self, pages: HicacheFolder) -> None:
        self._pages = pages
        self._tokens = torch.arange(pages.pool.size)

    def time_round(self, threads: int) -> float:
        return time_portions(self._read, self._pages.plan.list_portions(threads))

    def check(self) -> None:
        def read_one(number: int) -> bytes:
            self._read(0, [number])
            return _take_bytes(self._pages.pool.get_data_page(0))

        check_pages(self._pages.plan, read_one)

    def _read(self, thread: int, numbers: Sequence[int]) -> None:
        pages, slots = self._pages, self._pages.plan.slots
        lot = min(STORAGE_BATCH_SIZE, slots)
        first = 0
        for start in range(0, len(numbers), lot):
            some = numbers[start : start + lot]
            if first + len(some) > slots:
                first = 0
            here = (thread * slots + first) * pages.pool.page_size
            indices = self._tokens[here : here + len(some) * pages.pool.page_size]
            keys = [pages.names[number] for number in some]
            transfer = PoolTransfer(PoolName.KV, host_indices=indices, keys=keys)
            if not all(pages.file.batch_get_v2([transfer])[PoolName.KV]):
                raise WrongPage(f"one of the pages {list(some)} was not read")
            first += len(some)


class HicacheBare:
    """See Side."""

    def __init__(self, pages: HicacheFolder) -> None:
        self._pages = pages
        size = pages.plan.shape.page_bytes
        self._slots: list[Sequence[Tensor]] = [
            torch.zeros(pages.plan.slots * size, dtype=torch.uint8).split(size)
            for _ in range(pages.plan.max_threads)
        ]

    def time_round(self, threads: int) -> float:
        return time_portions(self._read, self._pages.plan.list_portions(threads))

    def check(self) -> None:
        def read_one(number: int) -> bytes:
            self._read(0, [number])
            return _take_bytes(self._slots[0][0])

        check_pages(self._pages.plan, read_one)

    def _read(self, thread: int, numbers: Sequence[int]) -> None:
        get: Callable[..., Any] = self._pages.file.get
        names, slots = self._pages.names, self._slots[thread]
        for turn, number in enumerate(numbers):
            if get(names[number], slots[turn % len(slots)]) is None:
                raise WrongPage(f"page {number} was not read")


def _take_bytes(page: Tensor) -> bytes:
    return page.contiguous().view(torch.uint8).numpy().tobytes()


def _describe_storage() -> HiCacheStorageConfig:
    """One rank of one, with nothing evicted and no metrics: SGLang's defaults."""
    return HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=True,
        model_name="model",
    )


def _build_host_pool(plan: ReadPlan) -> Any:
    """SGLang's host pool, with a slot for each one of bana's."""
    shape = plan.shape
    device_pool = MHATokenToKVPool(
        size=shape.tokens,
        page_size=shape.tokens,
        dtype=torch.bfloat16,
        head_num=shape.heads,
        head_dim=shape.head_dim,
        layer_num=shape.layers,
        device="cpu",
        enable_memory_saver=False,
    )
    (described,) = device_pool.get_device_pool_infos()
    info = described.buffer_info
    build = partial(get_mha_host_pool_cls(info), info, 1.0, 0, shape.tokens, LAYOUT)
    with _no_memory_reserved():
        return build(
            pin_memory=False,
            device_capacity_tokens=shape.tokens,
            start_layer=0,
            end_layer=shape.layers,
            host_token_capacity=plan.slots * plan.max_threads * shape.tokens,
        )


@contextmanager
def _no_memory_reserved() -> Iterator[None]:
    """SGLang builds no pool unless 10 GiB more are free, for a server; this one is small."""
    before = base.HICACHE_HOST_MEMORY_RESERVE_BYTES
    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0
    try:
        yield
    finally:
        base.HICACHE_HOST_MEMORY_RESERVE_BYTES = before
