"""A store behind an engine without tensors: pages arrive when a test says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import get_storage_hash_str

from bana.radix_global.keys import Namespace, page_keys, split_keys
from bana.radix_global.naive_store import NaiveStore
from bana.slo.limits import SloAsk, resolve_slo
from bana.slo.restore import RESTORES
from sglang_bana.config import SloConfig
from sglang_bana.engine.linker.layout import PageLayout
from sglang_bana.engine.linker.limits import LinkerLimits
from sglang_bana.engine.linker.linker import LinkerParts, StoreLinker
from sglang_bana.engine.linker.pages import HostPages
from sglang_bana.engine.linker.promises import Promises
from sglang_bana.engine.linker.recovery import Recovery
from sglang_bana.engine.linker.restore_desk import RestoreDesk
from sglang_bana.engine.linker.restoring import Restorer
from sglang_bana.engine.linker.wake import WakeBell

from .fake_engine import BOOT_ID, CLOCK, FakeEngine

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
    end_layer=1,
    salt="",
)


class StandClock:
    """The time that engines see."""

    def now_s(self) -> float:
        return CLOCK.now_s

    def sleep(self, duration_s: float) -> None:
        CLOCK.now_s += duration_s


class EngineStore:
    """One engine's store: which prompts are on its tier, and what has come of them."""

    def __init__(self, engine: FakeEngine) -> None:
        # Nothing is copied: these engines have no tensors.
        layout = PageLayout(
            layers=1,
            page_tokens=engine.page_size,
            heads=1,
            key_dim=1,
            value_dim=1,
            item_bytes=4,
        )
        bell, mover = WakeBell(), HostPages([], [], layout)
        self.engine = engine
        self.blank = bytes(layout.page_bytes)
        self.store = NaiveStore(512, layout.page_bytes, bell.ring)
        self.linker = StoreLinker(
            LinkerParts(
                store=self.store,
                namespace=NAMESPACE,
                layout=layout,
                loading=mover,
                saving=mover,
                pool=SimpleNamespace(device="cpu"),
                pool_pages=4,
                bell=bell,
                is_alone=engine.tp_size == 1,
                clock=StandClock(),
                limits=LinkerLimits(),
            )
        )
        desk = RestoreDesk(
            RESTORES.create("planned", {"most_s": 2.0}),
            0,
            self.linker.page_size,
            engine.find_compute,
            lambda: self.store.tiers,
            self.linker.counts,
        )
        self.restorer = Restorer(self.linker, engine.tree_cache, desk)
        engine.restorer, engine.recovery = self.restorer, Recovery(engine)
        engine.promises = Promises(resolve_slo(SloAsk(), SloConfig().rules()), BOOT_ID)

    def keep(self, req: Any, pages: int = 1000) -> None:
        """The tier has the first pages of this request's prompt."""
        page = self.engine.page_size
        whole = (len(req.origin_input_ids) - 1) // page * page
        key = RadixKey(req.origin_input_ids, limit=whole)
        hashes = get_storage_hash_str(key, None, page_size=page) if whole else []
        keys = split_keys(page_keys(NAMESPACE.digest(), hashes))
        self.store.tier_pages |= dict.fromkeys(keys[:pages], self.blank)

    def deliver(self, rid: str, pages: int) -> None:
        """Some of what the request wants arrives; nothing if it wants nothing."""
        for wanted in (self.linker.wants.find(rid), self.linker.wants._tails.get(rid)):
            if wanted is not None and not wanted.is_settled:
                self.store.deliver(wanted.want, pages)

    def drain(self) -> None:
        """Let the linker's threads end what they were given."""
        self.linker.settle()


def add_store(engine: FakeEngine) -> EngineStore:
    """Put a store behind the engine."""
    return EngineStore(engine)
