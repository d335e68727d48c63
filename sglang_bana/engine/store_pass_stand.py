"""A long queue behind a store whose pages arrive when they are told to, and the same without one.

queue   [ 900 have all their pages │ 100 are held: the store has promised pages to them ]
"""

from __future__ import annotations

import time
from enum import StrEnum
from random import Random
from typing import Any

import msgspec
from sglang.srt.mem_cache.unified_cache.components import ComponentType

from bana.radix_global.keys import Namespace, split_keys
from bana.radix_global.link import Want
from bana.radix_global.naive_store import NaiveStore
from bana.slo.clock import ManualClock
from bana.slo.errors import BanaError
from bana.slo.limits import Slo
from sglang_bana.config import EngineConfig, InstanceSpec, SchedulingConfig
from sglang_bana.engine.linker.building import build_desk
from sglang_bana.engine.linker.limits import LinkerLimits
from sglang_bana.engine.linker.linker import LinkerParts, StoreLinker
from sglang_bana.engine.linker.pages import HostPages
from sglang_bana.engine.linker.pools import read_layout
from sglang_bana.engine.linker.promises import Promises
from sglang_bana.engine.linker.recovery import Recovery
from sglang_bana.engine.linker.restoring import Restorer
from sglang_bana.engine.linker.tree_side import TreeLinker
from sglang_bana.engine.linker.wake import WakeBell
from sglang_bana.engine.linker.wanted import Wanted
from sglang_bana.engine.pass_host import POOL_PAGES, HostedScheduler
from sglang_bana.engine.scheduling_stand import BOOT_ID, ON_TIME_TTFT_S, PAGE, make_request

# No prompt of the queue has more.
MOST_PAGES = 128
HELD_REQUESTS = 100
NAMESPACE = Namespace(
    model="stand",
    revision="",
    weights_epoch="",
    dtype="float32",
    layout="",
    page_tokens=PAGE,
    tp_rank=0,
    tp_size=1,
    first_layer=0,
    end_layer=1,
    salt="",
)


class Waiting(StrEnum):
    """Who is held when a pass begins, and what has happened since the one before."""

    NOBODY = "nobody held"
    SOME = "100 held"
    SOME_NEWS = "100 held, a page for each"


class StorePassPlan(msgspec.Struct, frozen=True):
    """What a stand is built from."""

    waiting: Waiting
    requests: int
    order: str = "budget"

    @property
    def held_requests(self) -> int:
        """How many are held."""
        is_held = self.waiting is not Waiting.NOBODY
        return min(HELD_REQUESTS, self.requests // 2) if is_held else 0


class StandingClock(ManualClock):
    """Holds end by time alone when somebody tells it to go on."""

    def sleep(self, duration_s: float) -> None:
        self.advance(duration_s)


class StorePassStand:
    """Two schedulers with equal queues of their own; one of them has a store."""

    def __init__(self, plan: StorePassPlan, seed: int) -> None:
        self._plan = plan
        spec = InstanceSpec(
            name="stand",
            engine=EngineConfig(),
            secret="none",
            load_endpoint="ipc://none",
            parent_pid=1,
            run_dir="",
            scheduling=SchedulingConfig(order=plan.order, governor="tpot"),
        )
        self._plain, self.scheduler = HostedScheduler(spec), HostedScheduler(spec)
        self._plain_queue = self._fill(self._plain, seed)
        self.store = _put_store_behind(self.scheduler, plan.requests)
        self._queue = self._fill(self.scheduler, seed)
        self._held = self._settle()

    def time_store_ms(self) -> float:
        """One turn with the store; whoever is held stays so."""
        if self._plan.waiting is Waiting.SOME_NEWS:
            for wanted in self._held:
                self.store.deliver(wanted.want, 1)
        took_ms = _time_turn_ms(self.scheduler, self._queue)
        restorer = self.scheduler.restorer
        assert restorer is not None
        if len(restorer.holds) != self._plan.held_requests or restorer.counts.faults:
            raise BanaError(
                f"{len(restorer.holds)} requests are held after a pass, expected: "
                f"{self._plan.held_requests}; it timed something else"
            )
        return took_ms

    def time_plain_ms(self) -> float:
        """The same turn where there is no store."""
        return _time_turn_ms(self._plain, self._plain_queue)

    def _fill(self, scheduler: HostedScheduler, seed: int) -> list[Any]:
        """The queue, as it came."""
        rng = Random(seed)
        learner = scheduler.conductor.learner
        scheduler.conductor.note_inputs(learner.inputs(time.monotonic()))
        for index in range(self._plan.requests):
            req = make_request(rng, index, rng.uniform(*ON_TIME_TTFT_S))
            scheduler._add_request_to_queue(req)
        return list(scheduler.waiting_queue)

    def _settle(self) -> list[Wanted]:
        """What the longest prompts want, which stay held; the others have all their pages."""
        restorer = self.scheduler.restorer
        assert restorer is not None
        found = [restorer.linker.wants.find(req.rid) for req in self._queue]
        wants = [wanted for wanted in found if wanted is not None]
        wants.sort(key=lambda wanted: wanted.want.asked_pages, reverse=True)
        held = wants[: self._plan.held_requests]
        for wanted in wants[len(held) :]:
            self.store.deliver(wanted.want, wanted.want.asked_pages)
        _time_turn_ms(self.scheduler, self._queue)
        return held


class PromisingStore(NaiveStore):
    """Its tier has every page that anybody wants."""

    def prefetch(
        self, keys: bytes, due_s: float, deadline_s: float, await_until_s: float = 0.0
    ) -> Want:
        self.tier_pages |= dict.fromkeys(split_keys(keys), b"")
        return super().prefetch(keys, due_s, deadline_s, await_until_s)


def _time_turn_ms(scheduler: HostedScheduler, queue: list[Any]) -> float:
    scheduler.rewind(queue)
    start_s = time.perf_counter()
    scheduler.take_turn()
    took_ms = (time.perf_counter() - start_s) * 1e3
    if sorted(map(id, scheduler.waiting_queue)) != sorted(map(id, queue)):
        raise BanaError("requests have left the queue in a pass that admits nobody")
    return took_ms


def _put_store_behind(scheduler: HostedScheduler, requests: int) -> NaiveStore:
    """As `build_restorer` does, over a store in this process."""
    pool = scheduler.token_to_kv_pool_allocator.get_kvcache()
    layout = read_layout(pool, scheduler.tree_params, {ComponentType.FULL})
    bell, mover = WakeBell(), HostPages(pool.k_buffer, pool.v_buffer, layout)
    store = PromisingStore(requests * MOST_PAGES, layout.page_bytes, bell.ring)
    linker = StoreLinker(
        LinkerParts(
            store=store,
            namespace=NAMESPACE,
            layout=layout,
            loading=mover,
            saving=mover,
            pool=pool,
            pool_pages=POOL_PAGES,
            bell=bell,
            is_alone=True,
            clock=StandingClock(time.monotonic()),
            limits=LinkerLimits(),
        )
    )
    tree = scheduler.tree_cache
    tree.init_cache_linker(linker)
    tree.linker = TreeLinker(tree, linker)
    tree.linker.watch_inserts()
    scheduler.enable_unified_cache_external_linker = True
    scheduler.restorer = Restorer(linker, tree, build_desk(scheduler, linker, scheduler.spec))
    scheduler.recovery = Recovery(scheduler)
    scheduler.promises = Promises(Slo("standard", 10.0, 10.0), BOOT_ID)
    return store
