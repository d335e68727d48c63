"""What clusters are launched with, and when their stores are there."""

from __future__ import annotations

import msgspec
import pytest

from bana.eval.bench.cluster_cache.settings import (
    CACHE_AWARE,
    DEFAULT,
    PREDICTED,
    PRIVATE,
    ROUND_ROBIN,
    SCALES,
    STORE,
    describe_cluster_cache_settings,
    estimate_minutes,
)
from bana.eval.bench.cluster_cache.sides import configure, has_store, list_router_words
from bana.eval.bench.clusters import InstanceEntry, StatusEntry, StoreEntry
from bana.eval.bench.harness import Scale
from bana.radix_global.admin_messages import PlaceStatus, StoreReport
from bana.slo.wire import LinkReport
from sglang_bana.config import BanaConfig

LINK = LinkReport("attached", "", False, 0, 0, {}, {}, {}, {})


@pytest.mark.parametrize("name", [PRIVATE, STORE, PREDICTED])
def test_every_cluster_has_a_configuration_that_bana_takes(name: str) -> None:
    config = msgspec.convert(configure(name, DEFAULT), BanaConfig)
    assert config.store.enabled is (name != PRIVATE)
    assert config.routing.policy == ("predicted_finish" if name == PREDICTED else "least_load")
    assert (config.scheduling.order, config.scheduling.governor) == ("fcfs", "stock")
    assert config.slo.rules().default_class == "patient"


def test_only_cache_aware_routing_has_a_threshold() -> None:
    assert list_router_words(ROUND_ROBIN, 2) == ["--policy", "round_robin"]
    words = ["--policy", "cache_aware", "--balance-abs-threshold", "2"]
    assert list_router_words(CACHE_AWARE, 2) == words


def test_a_store_is_there_once_it_has_spoken_and_everybody_is_attached() -> None:
    report = StoreReport(
        1, 2, 3.0, False, 1, 2, 10, (PlaceStatus(0, "arena", 0, 0, 0, {}),), (), 0.0, 0, {}
    )
    attached, away = (
        InstanceEntry(name, link=msgspec.structs.replace(LINK, state=state))
        for name, state in (("a", "attached"), ("b", "away"))
    )
    told = StoreEntry(0.0, report)
    assert has_store(StatusEntry((attached, attached), told))
    assert not has_store(StatusEntry((attached, attached)))
    assert not has_store(StatusEntry((attached, away), told))
    assert not has_store(StatusEntry((attached, InstanceEntry("b")), told))


def test_the_readme_names_how_long_the_default_takes() -> None:
    assert estimate_minutes(DEFAULT) == pytest.approx(105, abs=10)
    for scale in Scale:
        told = describe_cluster_cache_settings(scale)
        assert msgspec.json.encode(told)
        assert SCALES[scale].seeds == told["seeds"]
