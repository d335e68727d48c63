"""What SGLang makes of the flags that name bana's linker: one linker a rank, with its client."""

from __future__ import annotations

import logging
import os
from typing import Any

from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.runtime_context import get_parallel

from bana.radix_global.client import StoreClient
from bana.radix_global.client_settings import ClientSettings
from bana.radix_global.keys import Namespace
from bana.radix_global.link import LinkState
from bana.slo.errors import SeamError
from sglang_bana.cluster.procfs import read_start_ticks
from sglang_bana.config import InstanceSpec
from sglang_bana.engine.instance import read_instance_spec
from sglang_bana.engine.linker.device_pages import ArenaPins, DevicePages
from sglang_bana.engine.linker.identity import Shard, describe_pages
from sglang_bana.engine.linker.layout import PageLayout
from sglang_bana.engine.linker.limits import LinkerLimits
from sglang_bana.engine.linker.linker import LinkerParts, StoreLinker
from sglang_bana.engine.linker.pages import HostPages, PageMover
from sglang_bana.engine.linker.pools import read_layout
from sglang_bana.engine.linker.wake import WakeBell
from sglang_bana.store.clock import RealClock

logger = logging.getLogger(__name__)


class BanaLinker(StoreLinker):
    """A StoreLinker as SGLang constructs it; ConfigError where the pool is not served."""

    def __init__(
        self,
        server_args: Any,
        params: Any,
        *,
        components: set[ComponentType],
        extra_config: Any = None,
        forward_stream: Any = None,
    ) -> None:
        spec = read_instance_spec()
        pool = params.token_to_kv_pool_allocator.get_kvcache()
        layout = read_layout(pool, params, components)
        namespace = describe_pages(server_args, _find_shard(pool), layout, spec.store_salt)
        bell, clock = WakeBell(), RealClock()
        store = connect(spec, namespace, layout, bell)
        loading, saving = build_movers(pool, layout, store)
        super().__init__(
            LinkerParts(
                store=store,
                namespace=namespace,
                layout=layout,
                loading=loading,
                saving=saving,
                pool=pool,
                pool_pages=pool.size // params.page_size,
                bell=bell,
                is_alone=namespace.tp_size == 1,
                clock=clock,
                limits=LinkerLimits(await_tokens=spec.handoff_tokens),
                forward_stream=forward_stream,
            )
        )


def connect(
    spec: InstanceSpec, namespace: Namespace, layout: PageLayout, bell: WakeBell
) -> StoreClient:
    """A client that looks for the instance's daemon from now on."""
    ticks = read_start_ticks(os.getpid())
    if ticks is None:
        raise SeamError(f"/proc does not know pid {os.getpid()}: mount it, the store needs it")
    settings = ClientSettings(
        endpoint=spec.store_endpoint,
        name=f"{spec.name}/{namespace.tp_rank}",
        namespace=namespace,
        page_bytes=layout.page_bytes,
        pid=os.getpid(),
        start_ticks=ticks,
    )
    client = StoreClient(settings, RealClock(), bell.ring, tell_state)
    client.start()
    return client


def tell_state(state: LinkState, reason: str) -> None:
    """Whether there is a store belongs into the instance's log, and what it says if it refuses."""
    if state is LinkState.ATTACHED:
        logger.info("bana: the store is there")
    else:
        logger.warning("bana: no store (%s): %s", state, reason)


def build_movers(pool: Any, layout: PageLayout, store: StoreClient) -> tuple[PageMover, PageMover]:
    """One for loading, one for saving."""
    if str(pool.device) == "cpu":
        host = HostPages(pool.k_buffer, pool.v_buffer, layout)
        return host, host
    pins = ArenaPins(store)
    loading, saving = (
        DevicePages(pool.k_buffer, pool.v_buffer, layout, pins) for _ in ("load", "save")
    )
    return loading, saving


def _find_shard(pool: Any) -> Shard:
    parallel = get_parallel()
    return Shard(
        tp_rank=parallel.tp_rank,
        tp_size=parallel.tp_size,
        first_layer=pool.start_layer,
        end_layer=pool.start_layer + pool.layer_num,
    )
