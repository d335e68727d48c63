"""A linker over a pool of tensors and a store in this process."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from bana.radix_global.keys import Namespace
from bana.radix_global.naive_store import NaiveStore
from sglang_bana.engine.linker.layout import PageLayout
from sglang_bana.engine.linker.limits import LinkerLimits
from sglang_bana.engine.linker.linker import LinkerParts, StoreLinker
from sglang_bana.engine.linker.pages import HostPages
from sglang_bana.engine.linker.wake import WakeBell
from sglang_bana.engine.linker.wanted import Asking

# What threads get to do what they were told; a test that needs as much has failed.
PATIENCE_S = 30.0
NAMESPACE = Namespace(
    model="m",
    revision="r",
    weights_epoch="",
    dtype="float32",
    layout="l",
    page_tokens=4,
    tp_rank=0,
    tp_size=1,
    first_layer=0,
    end_layer=3,
    salt="",
)


class TestClock:
    """Real for waits, set by hand where a test says so."""

    __test__ = False

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now_s(self) -> float:
        return time.monotonic() + self.ahead_s

    def sleep(self, duration_s: float) -> None:
        time.sleep(duration_s)


class Pool:
    """What a linker sees of SGLang's pool of KV, filled with numbers of its own."""

    device = "cpu"

    def __init__(
        self, layout: PageLayout, pages: int, dtype: torch.dtype = torch.float32, seed: int = 0
    ) -> None:
        self.layout = layout
        tokens = pages * layout.page_tokens
        drawn = torch.Generator().manual_seed(seed)
        shapes = [(tokens, layout.heads, dim) for dim in (layout.key_dim, layout.value_dim)]
        self.k_buffer, self.v_buffer = (
            [torch.randn(shape, generator=drawn).to(dtype) for _ in range(layout.layers)]
            for shape in shapes
        )

    def page(self, page: int) -> list[torch.Tensor]:
        """K and V of all layers of one page, as bytes."""
        size = self.layout.page_tokens
        rows = slice(page * size, (page + 1) * size)
        buffers = [*self.k_buffer, *self.v_buffer]
        return [buffer[rows].contiguous().view(torch.uint8).clone() for buffer in buffers]


def layout_of(page_tokens: int = 4, heads: int = 2, dim: int = 8, layers: int = 3) -> PageLayout:
    return PageLayout(
        layers=layers,
        page_tokens=page_tokens,
        heads=heads,
        key_dim=dim,
        value_dim=dim,
        item_bytes=4,
    )


class Watched(HostPages):
    """Copies, and lets something happen before each layer."""

    def __init__(self, stand: Stand, happens: Callable[[Stand, int], None] | None) -> None:
        super().__init__(stand.pool.k_buffer, stand.pool.v_buffer, stand.layout)
        self._stand = stand
        self._happens = happens

    def begin(self, *args: Any) -> Any:
        copy = super().begin(*args)
        if copy is None or self._happens is None:
            return copy
        return WatchedCopy(copy, partial(self._happens, self._stand))


class WatchedCopy:
    """A copy of which each layer is announced."""

    def __init__(self, copy: Any, happens: Callable[[int], None]) -> None:
        self._copy = copy
        self._happens = happens

    def load_layer(self, layer: int) -> None:
        self._happens(layer)
        self._copy.load_layer(layer)

    def save_layer(self, layer: int) -> None:
        self._happens(layer)
        self._copy.save_layer(layer)

    def finish(self) -> None:
        self._copy.finish()

    def fence(self, layer: int) -> None:
        self._copy.fence(layer)


class Gate:
    """Holds a copying thread before its second layer, until it is opened."""

    def __init__(self) -> None:
        self.entered, self._opened = threading.Event(), threading.Event()

    def __call__(self, stand: Stand, layer: int) -> None:
        if layer == 1:
            self.entered.set()
            assert self._opened.wait(PATIENCE_S)

    def wait(self) -> None:
        """Return when a thread is held."""
        assert self.entered.wait(PATIENCE_S)

    def open(self) -> None:
        """Let it go on, and hold nobody any more."""
        self._opened.set()


class Stand:
    """One linker with its pool; several may share a store."""

    def __init__(
        self,
        store: NaiveStore | None = None,
        *,
        seed: int = 0,
        pages: int = 64,
        is_alone: bool = True,
        limits: LinkerLimits | None = None,
        before_layer: Callable[[Stand, int], None] | None = None,
    ) -> None:
        self.layout = layout_of()
        self.bell = WakeBell()
        self.clock = TestClock()
        self.store = store or NaiveStore(128, self.layout.page_bytes, self.bell.ring)
        self.pool = Pool(self.layout, pages, seed=seed)
        mover = Watched(self, before_layer)
        self.linker = StoreLinker(
            LinkerParts(
                store=self.store,
                namespace=NAMESPACE,
                layout=self.layout,
                loading=mover,
                saving=mover,
                pool=self.pool,
                pool_pages=pages,
                bell=self.bell,
                is_alone=is_alone,
                clock=self.clock,
                limits=limits or LinkerLimits(),
            )
        )

    def tokens(self, pages: list[int]) -> torch.Tensor:
        """The token slots of these pages of the pool."""
        size = self.layout.page_tokens
        return torch.cat([torch.arange(page * size, (page + 1) * size) for page in pages])

    def transfer(self, hashes: list[str], pages: list[int] | None = None) -> list[Any]:
        """As SGLang describes a transfer of KV."""
        indices = None if pages is None else self.tokens(pages)
        return [SimpleNamespace(name="kv", keys=hashes, device_indices=indices)]

    def save(self, hashes: list[str], pages: list[int], parent: str | None = None) -> bool:
        """Offload pages, and wait for the result."""
        self.linker.note_parent(parent)
        assert self.linker.offload(self.transfer(hashes, pages))
        return self.wait_saved()

    def wait_saved(self) -> bool:
        wait_until(lambda: self.linker.num_completed_offloads() > 0)
        return self.linker.pop_completed_offload()

    def want(self, rid: str, hashes: list[str], first: int = 0, due_s: float = 1e9) -> Any:
        now_s = self.clock.now_s()
        asking = Asking(self.linker.digest, hashes, first, due_s)
        return self.linker.wants.ask(rid, asking, now_s)

    def load(self, rid: str, hashes: list[str], pages: list[int]) -> bool:
        """Load pages in one step; whether all of it landed."""
        assert self.linker.load(rid, self.transfer(hashes, pages))
        return self.step()

    def step(self) -> bool:
        index = self.linker.start_layer_wise_loading()
        counter = self.linker.layer_done_counter
        counter.set_consumer(index)
        for layer in range(self.layout.layers):
            counter.wait_until(layer)
        return self.linker.finish_layer_wise_loading(index)


def hashes_of(count: int, prompt: str = "a") -> list[str]:
    """Page hashes as SGLang writes them: sha256 in hexadecimal."""
    return [hashlib.sha256(f"{prompt}{page}".encode()).hexdigest() for page in range(count)]


def wait_until(is_so: Any) -> None:
    """Let threads work; fails where that does not come true."""
    end_s = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not is_so():
        assert time.monotonic() < end_s, "the thread has not done it"
        pause.wait(0.001)
