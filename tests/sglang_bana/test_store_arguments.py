"""With a store SGLang gets the linker's flags; beside another cache there is no store."""

from __future__ import annotations

import json

import msgspec
import pytest

from bana.slo.errors import ConfigError
from sglang_bana.config import EngineConfig, InstanceSpec, SchedulerKind
from sglang_bana.engine.store_arguments import OTHER_CACHES, list_store_arguments, uses_store

SPEC = InstanceSpec(
    name="i0",
    engine=EngineConfig(),
    secret="s",
    load_endpoint="ipc://l",
    parent_pid=1,
    run_dir="",
    store_endpoint="ipc://s",
)


def test_a_store_brings_the_linker_and_pages_worth_keeping() -> None:
    added = list_store_arguments(SPEC, ["--model-path", "m"])
    assert "--enable-unified-cache-external-linker" in added
    assert "--enable-cache-report" in added
    config = json.loads(added[added.index("--unified-cache-external-linker-config") + 1])
    assert config["linker"] == "BanaLinker"
    assert added[added.index("--page-size") + 1] == "16"
    assert "ipc://s" not in " ".join(added)


def test_a_page_size_that_was_given_stands() -> None:
    assert "--page-size" not in list_store_arguments(SPEC, ["--page-size", "64"])


@pytest.mark.parametrize("option", OTHER_CACHES)
def test_another_cache_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        list_store_arguments(SPEC, [option])


def test_without_a_store_and_under_sglang_s_scheduler_nothing_is_added() -> None:
    none = msgspec.structs.replace(SPEC, store_endpoint="")
    stock = msgspec.structs.replace(SPEC, engine=EngineConfig(scheduler=SchedulerKind.STOCK))
    for spec in (none, stock):
        assert not uses_store(spec)
        assert list_store_arguments(spec, ["--disable-radix-cache"]) == []
