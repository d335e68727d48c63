"""The arguments of SGLang that put bana's store behind its prefix cache."""

from __future__ import annotations

import json
from collections.abc import Sequence

from bana.slo.errors import ConfigError
from sglang_bana.cluster.sglang_args import has_option
from sglang_bana.config import InstanceSpec, SchedulerKind

LINKER_MODULE = "sglang_bana.engine.linker.entry"
LINKER_CLASS = "BanaLinker"
PAGE_TOKENS = 16
# Each would be another cache behind, or instead of, the one that the store extends.
OTHER_CACHES = (
    "--enable-unified-cache-external-linker",
    "--enable-hierarchical-cache",
    "--hicache-storage-backend",
    "--radix-cache-backend",
    "--disable-radix-cache",
)


def uses_store(spec: InstanceSpec) -> bool:
    """Whether this instance has a store; SGLang's own scheduler never has."""
    return bool(spec.store_endpoint) and spec.engine.scheduler is SchedulerKind.BANA


def list_store_arguments(spec: InstanceSpec, given: Sequence[str]) -> list[str]:
    """What is added to the `given` arguments; ConfigError where they ask for another cache."""
    if not uses_store(spec):
        return []
    for option in OTHER_CACHES:
        if has_option(given, option):
            raise ConfigError(
                f"SGLang's {option} cannot be used with the store, which extends SGLang's own "
                "prefix cache; leave it out, or leave the store off with `--set "
                "store.enabled=false`"
            )
    linker = {"linker": LINKER_CLASS, "linker_module_path": LINKER_MODULE}
    added = ["--enable-unified-cache-external-linker", "--enable-cache-report"]
    added += ["--unified-cache-external-linker-backend", "dynamic"]
    added += ["--unified-cache-external-linker-config", json.dumps(linker)]
    if not has_option(given, "--page-size"):
        # SGLang's page of one token is no page to keep anywhere.
        added += ["--page-size", str(PAGE_TOKENS)]
    return added
