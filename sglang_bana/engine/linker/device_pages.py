"""Copies pages between a pool on a CUDA device and the arena, on a stream of its own.

slot ──(DMA, pinned)──▶ staging ──(one call a layer)──▶ K and V of the pool
                           one event a layer: the forward pass waits for it on the device
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch

from bana.radix_global.arena_view import ArenaView
from bana.radix_global.link import Slot, StoreLink
from sglang_bana.engine.linker.layout import PageLayout
from sglang_bana.engine.linker.pages import PageCopy, as_page_rows

STAGED_PAGES = 256
logger = logging.getLogger(__name__)


class MappedStore(Protocol):
    """A store whose whole arena can be pinned."""

    def arena(self, epoch: int) -> ArenaView | None:
        """The arena of that life of the daemon, None where it is gone."""
        ...


class DevicePages:
    """Of a pool on a CUDA device. One thread begins copies and calls `close`."""

    def __init__(
        self, keys: Sequence[Any], values: Sequence[Any], layout: PageLayout, pins: ArenaPins
    ) -> None:
        self.layout = layout
        self.keys = [as_page_rows(buffer, layout.key_bytes) for buffer in keys]
        self.values = [as_page_rows(buffer, layout.value_bytes) for buffer in values]
        self.device = keys[0].device
        self.stream = torch.cuda.Stream(self.device)
        self._pins = pins
        self._pinned: PinnedArena | None = None

    def begin(
        self, store: StoreLink, pages: Sequence[int], slots: Sequence[Slot]
    ) -> PageCopy | None:
        if slots and not self._pin(slots[0].epoch):
            return None
        hosts = []
        for slot in slots:
            view = store.view(slot)
            if view is None:
                return None
            hosts.append(torch.frombuffer(view, dtype=torch.uint8))
        with torch.cuda.stream(self.stream):
            index = torch.tensor(pages, dtype=torch.int64, device=self.device)
        return DeviceCopy(self, index, hosts)

    def close(self) -> None:
        self.stream.synchronize()
        pinned, self._pinned = self._pinned, None
        if pinned is not None:
            self._pins.give_back(pinned)

    def _pin(self, epoch: int) -> bool:
        if self._pinned is None or self._pinned.view.epoch != epoch:
            self.close()
            with torch.cuda.device(self.device):
                self._pinned = self._pins.borrow(epoch)
        return self._pinned is not None


class ArenaPins:
    """Arenas registered with CUDA, each once however many copy from it."""

    def __init__(self, store: MappedStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._borrowed: dict[int, tuple[PinnedArena, int]] = {}

    def borrow(self, epoch: int) -> PinnedArena | None:
        """The arena of that life of the daemon, until it is given back; None where it is gone."""
        with self._lock:
            pinned, borrowers = self._borrowed.get(epoch, (None, 0))
            if pinned is None:
                view = self._store.arena(epoch)
                if view is None:
                    return None
                pinned = PinnedArena(view)
            self._borrowed[epoch] = (pinned, borrowers + 1)
            return pinned

    def give_back(self, pinned: PinnedArena) -> None:
        """The borrower copies from it no more."""
        with self._lock:
            _, borrowers = self._borrowed.pop(pinned.view.epoch)
            if borrowers > 1:
                self._borrowed[pinned.view.epoch] = (pinned, borrowers - 1)
            else:
                pinned.close()


class PinnedArena:
    """All slots of one arena, registered with CUDA until `close`.

    Where CUDA refuses, copies go through pageable memory: slower, and said once.
    """

    def __init__(self, view: ArenaView) -> None:
        self.view = view
        # It also keeps the mapping alive until it has been unregistered.
        self._first = torch.frombuffer(view.view(0), dtype=torch.uint8)
        size_bytes = view.layout.slots * view.layout.stride_bytes
        status = torch.cuda.cudart().cudaHostRegister(self._first.data_ptr(), size_bytes, 0)
        self._is_registered = int(status) == 0
        if not self._is_registered:
            logger.warning(
                "bana: the arena's %d bytes cannot be pinned (CUDA says %s); copies are slower. "
                "Raise `ulimit -l`, or lower store.arena_bytes",
                size_bytes,
                status,
            )

    def close(self) -> None:
        """Unregister it."""
        if self._is_registered:
            torch.cuda.cudart().cudaHostUnregister(self._first.data_ptr())
            self._is_registered = False


class DeviceCopy:
    """Between slots and a device; what was begun is there after its layer's event."""

    def __init__(self, owner: DevicePages, index: Any, hosts: Sequence[Any]) -> None:
        self._owner = owner
        self._layout = owner.layout
        self._index = index
        self._hosts = hosts
        self._events: dict[int, Any] = {}

    def load_layer(self, layer: int) -> None:
        owner, layout = self._owner, self._layout
        start = layer * layout.layer_bytes
        with torch.cuda.stream(owner.stream):
            for index, hosts in self._split():
                staging = self._stage(len(hosts))
                for row, host in zip(staging, hosts, strict=True):
                    row.copy_(host[start : start + layout.layer_bytes], non_blocking=True)
                owner.keys[layer].index_copy_(0, index, staging[:, : layout.key_bytes])
                owner.values[layer].index_copy_(0, index, staging[:, layout.key_bytes :])
            event = torch.cuda.Event()
            event.record()
        self._events[layer] = event

    def save_layer(self, layer: int) -> None:
        owner, layout = self._owner, self._layout
        start = layer * layout.layer_bytes
        with torch.cuda.stream(owner.stream):
            for index, hosts in self._split():
                staging = self._stage(len(hosts))
                staging[:, : layout.key_bytes] = owner.keys[layer].index_select(0, index)
                staging[:, layout.key_bytes :] = owner.values[layer].index_select(0, index)
                for row, host in zip(staging, hosts, strict=True):
                    host[start : start + layout.layer_bytes].copy_(row, non_blocking=True)

    def finish(self) -> None:
        self._owner.stream.synchronize()

    def fence(self, layer: int) -> None:
        # A layer that was never begun is told to the counter as failed, and waits for nothing.
        event = self._events.get(layer)
        if event is not None:
            torch.cuda.current_stream().wait_event(event)

    def _split(self) -> Iterator[tuple[Any, Sequence[Any]]]:
        """So many pages at a time that what they need on the device stays small."""
        for first in range(0, len(self._hosts), STAGED_PAGES):
            end = first + STAGED_PAGES
            yield self._index[first:end], self._hosts[first:end]

    def _stage(self, pages: int) -> Any:
        """Rows on the device for one layer; the stream's own order frees them for the next."""
        size = (pages, self._layout.layer_bytes)
        return torch.empty(size, dtype=torch.uint8, device=self._owner.device)
