"""A stand for layer-wise loads: pages in an arena, SGLang's pool, and a forward pass of matmuls.

loader's core   │ copy layer 0 │ copy layer 1 │ …
forward's core                 │ waits for 0, computes it │ waits for 1, …
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from itertools import product
from pathlib import Path

import msgspec
import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import LayerWiseLoadCounter

from bana.radix_global.arena import Arena
from bana.radix_global.arena_layout import ArenaLayout
from bana.radix_global.arena_view import ArenaView
from bana.radix_global.link import Rows, Slot
from bana.radix_global.naive_store import NaiveStore
from bana.slo.errors import BanaError
from sglang_bana.engine.linker.layout import PageLayout
from sglang_bana.engine.linker.loader import LoadBatch, Loader, QueuedLoad
from sglang_bana.engine.linker.pages import HostPages
from sglang_bana.store.clock import RealClock

SHARED_MEMORY = Path("/dev/shm")
PAGE_TOKENS = 16
LOAD_LIMIT_S = 60.0
# One matmul takes some tens of microseconds, as the small calls of a forward pass do.
ROWS, WIDTH = 16, 256
CALIBRATION_RUNS = 5
# What a layer takes beside its calls shows once there are many.
CALIBRATIONS = 3
MAX_CALLS = 10_000


class LoadShape(msgspec.Struct, frozen=True):
    """`pages` of a model with so many layers and heads of K and V, in bfloat16."""

    layers: int
    heads: int
    head_dim: int
    pages: int

    @property
    def layout(self) -> PageLayout:
        """How a page lies in a slot."""
        return PageLayout(
            layers=self.layers,
            page_tokens=PAGE_TOKENS,
            heads=self.heads,
            key_dim=self.head_dim,
            value_dim=self.head_dim,
            item_bytes=2,
        )


class Placement(StrEnum):
    """Where the loading thread runs beside the forward pass."""

    APART = "two cores"
    TOGETHER = "one core"


class OverlapStand:
    """One step's load and its forward pass, alone or together; milliseconds of each.

    The calling thread computes, on the last core that it was given; torch has one thread.
    """

    def __init__(self, shape: LoadShape, placement: Placement, arena: Arena) -> None:
        layout = shape.layout
        self._shape = shape
        self._layout = layout
        self._pool = _make_pool(shape)
        self._view = ArenaView(arena.path)
        numbers = arena.take(shape.pages)
        self._slots = tuple(Slot(n, arena.generation(n), arena.epoch) for n in numbers)
        # Strewn over the pool, as after long service; page 0 is SGLang's own.
        order = torch.randperm(shape.pages, generator=torch.Generator().manual_seed(0)) + 1
        tokens = torch.arange(PAGE_TOKENS)
        self._load = QueuedLoad((order[:, None] * PAGE_TOKENS + tokens).reshape(-1), self._slots)
        self._counter = LayerWiseLoadCounter(shape.layers, self._fence)
        self._pool.register_layer_transfer_counter(self._counter)
        self._clock = RealClock()
        mover = HostPages(self._pool.k_buffer, self._pool.v_buffer, layout)
        store = ArenaStore(self._view)
        self._loader = Loader(store, mover, self._counter, PAGE_TOKENS, self._clock)
        self._left, self._out = torch.ones(ROWS, WIDTH), torch.empty(ROWS, WIDTH)
        self._right = torch.ones(WIDTH, WIDTH)
        self._calls = 1
        self._place(placement)
        self._check(order.tolist())

    def tune(self, forward_share: float) -> None:
        """Let the forward pass take so many times what the load takes."""
        wanted_ms = self._least_ms(self.time_load_ms) * forward_share
        self._calls = 1
        for _ in range(CALIBRATIONS):
            took_ms = self._least_ms(self.time_forward_ms)
            self._calls = min(MAX_CALLS, max(1, round(self._calls * wanted_ms / took_ms)))

    def time_load_ms(self) -> float:
        """The load alone, until its last layer is there."""
        start_s = time.perf_counter()
        index = self._start()
        self._finish(index)
        return (time.perf_counter() - start_s) * 1e3

    def time_forward_ms(self) -> float:
        """The forward pass alone: nothing is on its way."""
        self._counter.set_consumer(-1)
        start_s = time.perf_counter()
        self._compute()
        return (time.perf_counter() - start_s) * 1e3

    def time_both_ms(self) -> float:
        """A step that loads: each layer is computed once its own pages are there."""
        start_s = time.perf_counter()
        index = self._start()
        self._counter.set_consumer(index)
        self._compute()
        self._finish(index)
        return (time.perf_counter() - start_s) * 1e3

    def close(self) -> None:
        """End the loading thread."""
        self._loader.close(LOAD_LIMIT_S)
        self._view.close()

    def _least_ms(self, run: Callable[[], float]) -> float:
        return min(run() for _ in range(CALIBRATION_RUNS))

    def _start(self) -> int:
        index = self._counter.update_producer()
        deadline_s = self._clock.now_s() + LOAD_LIMIT_S
        self._loader.start(LoadBatch(index, (self._load,), deadline_s, None))
        return index

    def _finish(self, index: int) -> None:
        if not self._counter.finish(index):
            raise BanaError("a load failed; what was timed says nothing")
        self._loader.forget(index)

    def _compute(self) -> None:
        pool, left, right, out = self._pool, self._left, self._right, self._out
        for layer in range(self._shape.layers):
            # SGLang's attention asks for both, and waits there for the counter.
            pool.get_key_buffer(layer)
            pool.get_value_buffer(layer)
            for _ in range(self._calls):
                torch.mm(left, right, out=out)

    def _fence(self, index: int, layer: int) -> None:
        self._loader.fence(index, layer)

    def _place(self, placement: Placement) -> None:
        """The loading thread begins with its first load, on the cores of who starts it."""
        cores = sorted(os.sched_getaffinity(0))
        loading = cores[0] if placement is Placement.APART else cores[-1]
        os.sched_setaffinity(0, {loading})
        self.time_load_ms()
        os.sched_setaffinity(0, {cores[-1]})

    def _check(self, order: list[int]) -> None:
        """BanaError unless the first load has brought every page to its place."""
        layout, views = self._layout, [self._view.view(slot.number) for slot in self._slots]
        slots = [torch.frombuffer(view, dtype=torch.uint8) for view in views]
        for layer in range(layout.layers):
            keys, values = self._pool.k_buffer[layer], self._pool.v_buffer[layer]
            pairs = ((keys, layout.keys_at(layer)), (values, layout.values_at(layer)))
            for (buffer, place), (page, slot) in product(pairs, zip(order, slots, strict=True)):
                rows = buffer[page * PAGE_TOKENS : (page + 1) * PAGE_TOKENS]
                if not torch.equal(rows.view(torch.uint8).flatten(), slot[place]):
                    raise BanaError(f"layer {layer} of page {page} is not what was saved")


class ArenaStore(NaiveStore):
    """Slots of a mapped arena, seen as a client's engine sees them; nothing else is there."""

    def __init__(self, mapped: ArenaView) -> None:
        super().__init__(0, 0, lambda: None)
        self._mapped = mapped

    def view(self, slot: Slot) -> memoryview | None:
        return self._mapped.view(slot.number) if slot.epoch == self._mapped.epoch else None

    def rows(self, epoch: int) -> Rows | None:
        return self._mapped.rows if epoch == self._mapped.epoch else None

    def is_valid(self, slot: Slot) -> bool:
        return self._mapped.generation(slot.number) == slot.generation


@contextmanager
def open_overlap_stand(shape: LoadShape, placement: Placement) -> Iterator[OverlapStand]:
    """A stand whose pages have just been written; the thread's cores are as before afterwards."""
    cores = os.sched_getaffinity(0)
    threads = torch.get_num_threads()
    epoch = time.monotonic_ns()
    with ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, cores)
        stack.callback(torch.set_num_threads, threads)
        torch.set_num_threads(1)
        layout = ArenaLayout(shape.pages, shape.layout.page_bytes)
        arena = Arena(SHARED_MEMORY / f"bb-{os.getpid()}-{epoch}", layout, epoch)
        stack.callback(arena.close)
        drawn = torch.Generator().manual_seed(1)
        for slot in range(shape.pages):
            content = torch.randint(256, (layout.slot_bytes,), generator=drawn, dtype=torch.uint8)
            torch.frombuffer(arena.view(slot), dtype=torch.uint8).copy_(content)
        stand = OverlapStand(shape, placement, arena)
        stack.callback(stand.close)
        yield stand


def _make_pool(shape: LoadShape) -> MHATokenToKVPool:
    return MHATokenToKVPool(
        (shape.pages + 1) * PAGE_TOKENS,
        PAGE_TOKENS,
        torch.bfloat16,
        shape.heads,
        shape.head_dim,
        shape.layers,
        "cpu",
        enable_memory_saver=False,
    )
