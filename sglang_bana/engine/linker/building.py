"""From SGLang's tree to the scheduler's side of the store, or to none where there is no store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from sglang.srt.mem_cache.utils import get_hash_str

from bana.slo.errors import SeamError
from bana.slo.limits import SloAsk, resolve_slo
from bana.slo.restore import RESTORES
from sglang_bana.config import InstanceSpec
from sglang_bana.engine.linker.linker import StoreLinker
from sglang_bana.engine.linker.promises import Promises
from sglang_bana.engine.linker.restore_desk import RestoreDesk
from sglang_bana.engine.linker.restoring import Restorer
from sglang_bana.engine.linker.tree_side import TreeLinker

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def build_restorer(scheduler: Any, spec: InstanceSpec) -> tuple[Restorer, Promises] | None:
    """None without a store; SeamError where SGLang has not built bana's linker."""
    if not spec.store_endpoint:
        return None
    tree = scheduler.tree_cache
    linker = getattr(getattr(tree, "linker", None), "cache_linker", None)
    if not isinstance(linker, StoreLinker):
        raise SeamError(
            f"SGLang's cache is a {type(tree).__name__} with linker {linker!r} although the store "
            f"{spec.store_endpoint} was asked for; leave --radix-cache-backend and other caches out"
        )
    load_page_hash()
    # Nothing was matched yet, so that a new driver misses nothing.
    tree.linker = TreeLinker(tree, linker)
    tree.linker.watch_inserts()
    promises = Promises(
        default=resolve_slo(SloAsk(), spec.slo.rules()),
        boot_id=BOOT_ID_FILE.read_text(encoding="ascii").strip(),
    )
    return Restorer(linker, tree, build_desk(scheduler, linker, spec)), promises


def load_page_hash() -> None:
    """Load what names pages, which SGLang compiles at first use; SeamError where it cannot."""
    try:
        get_hash_str([0], page_size=1)
    except RuntimeError as exc:
        raise SeamError(
            f"SGLang's hash of KV pages does not load: {exc.__cause__ or exc}; the store needs it: "
            "install a C++ compiler and OpenSSL's headers, or set store.enabled=false"
        ) from exc


def build_desk(scheduler: Any, linker: StoreLinker, spec: InstanceSpec) -> RestoreDesk:
    """Who decides what this instance fetches: of each page, what all of its ranks read."""
    page = linker.page_size
    whole = msgspec.structs.replace(page, size_bytes=page.size_bytes * linker.ranks)
    return RestoreDesk(
        RESTORES.create(spec.restore, spec.restore_options),
        spec.scheduling.seed,
        whole,
        scheduler.find_compute,
        lambda: linker.store.tiers,
        linker.counts,
    )
