"""From `[store]` to tiers, and what is refused on the way."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from bana.radix_global.stores.directory import DirectoryStore
from bana.radix_global.stores.faulty import FaultyStore
from bana.radix_global.stores.memory import MemoryStore
from bana.radix_global.stores.throttled import ThrottledStore
from bana.radix_global.writer.options import WriterOptions
from bana.slo.errors import ConfigError
from sglang_bana.config import StoreConfig, StoreSpec, StoreTierConfig, TierKind
from sglang_bana.store import mooncake
from sglang_bana.store.building import (
    build_plan,
    build_tiers,
    check_store,
    count_index_pages,
)
from sglang_bana.store.clock import RealClock

POOL: dict[str, Any] = {"master": "127.0.0.1:50051"}
SMALL: dict[str, Any] = {"capacity_bytes": 2**22, "options": {"segment_bytes": 2**20}}


def config(*tiers: StoreTierConfig, **changes: Any) -> StoreConfig:
    return StoreConfig(tiers=tiers, **changes)


def build(*tiers: StoreTierConfig) -> list[Any]:
    built = build_tiers(config(*tiers), RealClock(), Random(1))
    for tier in built:
        tier.store.close()
    return list(built)


def test_tiers_are_built_in_their_order(tmp_path: Path) -> None:
    slow = {"bandwidth_bytes_per_s": 1e6, "latency_s": 0.1}
    built = build(
        StoreTierConfig(path=str(tmp_path / "a"), name="disk", width=3, **SMALL),
        StoreTierConfig(TierKind.MEMORY, capacity_bytes=2**20),
        StoreTierConfig(TierKind.MEMORY, capacity_bytes=2**20, throttle=slow),
        StoreTierConfig(TierKind.MEMORY, capacity_bytes=2**20, faults={"corrupt": 0.1}),
    )
    kinds = [DirectoryStore, MemoryStore, ThrottledStore, FaultyStore]
    assert [type(tier.store) for tier in built] == kinds
    assert [tier.name for tier in built] == ["disk", "memory-2", "memory-3", "memory-4"]
    assert built[0].width == 3


def test_faults_with_a_seed_are_the_same_each_time() -> None:
    faults = {"error": 0.5, "seed": 7.0}
    tier = StoreTierConfig(TierKind.MEMORY, capacity_bytes=2**20, faults=faults)
    drawn = []
    for rng in (Random(1), Random(2)):
        (built,) = build_tiers(config(tier), RealClock(), rng)
        drawn.append([built.store.read(bytes(16), memoryview(bytearray(8))) for _ in range(64)])
        built.store.close()
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 2


@pytest.mark.parametrize(
    ("tier", "words"),
    [
        (StoreTierConfig(), "needs a path"),
        (StoreTierConfig(path="/x", options={"segment_byte": 1}), "segment_bytes"),
        (StoreTierConfig(path="/x", options={"segment_bytes": "1"}), "segment_bytes"),
        (StoreTierConfig(path="/x", options={"capacity_bytes": 1}), "beside options"),
        (StoreTierConfig(path="/x", capacity_bytes=5), "capacity_bytes 5"),
        (StoreTierConfig(TierKind.MEMORY, path="/x"), "no path"),
        (StoreTierConfig(TierKind.MOONCAKE), "master"),
        (StoreTierConfig(TierKind.MOONCAKE, path="/x", options=POOL), "options.master"),
        (StoreTierConfig(TierKind.MOONCAKE, options={**POOL, "lane": 1}), "lanes"),
        (StoreTierConfig(TierKind.MOONCAKE, options={**POOL, "lanes": 99}), "lanes 99"),
        (StoreTierConfig(path="/x", throttle={"latency": 1.0}), "latency_s"),
        (StoreTierConfig(path="/x", throttle={"bandwidth_bytes_per_s": 0.0}), "allowed: > 0"),
        (StoreTierConfig(path="/x", faults={"corupt": 0.1}), "corrupt"),
        (StoreTierConfig(path="/x", faults={"corrupt": 2.0}), "at most 1"),
    ],
)
def test_what_a_tier_cannot_be_is_refused(tier: StoreTierConfig, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_store(config(tier))


@pytest.mark.parametrize(
    "changes",
    [
        {"reader": "competion"},
        {"placement": "al"},
        {"placement_options": {"gain": 9}},
        {"reader_options": {"x": 1}},
        {"writer_options": {"defer": 1.0}},
        {"writer_options": {"defer_s": "1"}},
        {"writer_options": {"defer_s": 11.0}},
    ],
)
def test_unknown_policies_and_options_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        check_store(config(**changes))


def test_two_tiers_of_one_name_are_refused() -> None:
    tier = StoreTierConfig(TierKind.MEMORY, name="x", capacity_bytes=2**20)
    with pytest.raises(ConfigError, match="another name"):
        check_store(config(tier, tier))


def test_tiers_that_were_opened_are_closed_when_a_later_one_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    good = StoreTierConfig(path=str(tmp_path / "a"), **SMALL)
    bad = StoreTierConfig(path=str(tmp_path / "file" / "b"), **SMALL)
    with pytest.raises(ConfigError):
        build(good, bad)


def test_a_pool_without_its_package_is_refused_when_it_is_opened_not_when_it_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mooncake, "MODULE", "a_module_that_is_not_there")
    pool = StoreTierConfig(TierKind.MOONCAKE, options=POOL)
    check_store(config(pool))
    with pytest.raises(ConfigError, match="pip install"):
        build(pool)


def test_the_index_knows_as_many_pages_as_the_tiers_may_hold() -> None:
    pool = StoreTierConfig(TierKind.MOONCAKE, options={**POOL, "max_pages": 500})
    assert count_index_pages(config(pool, pool)) == 1_001_000
    tier = StoreTierConfig(path="/x", options={"max_pages": 1000})
    assert count_index_pages(config(tier, tier)) == 1_000_000 + 2000
    assert count_index_pages(config(*[StoreTierConfig(path="/x")] * 7)) == 8_000_000


def test_the_plan_is_what_was_configured(tmp_path: Path) -> None:
    patience = {"defer_s": 0.0, "give_up_s": 30}
    store = config(
        arena_bytes=2**21,
        slot_bytes=99,
        leased_share=0.5,
        refresh_s=7.0,
        writer_options=patience,
    )
    spec = StoreSpec(store, "ipc:///s", "/dev/shm/x", "secret", 0, 1.0)
    plans = [build_plan(spec, Random(seed)) for seed in (1, 2)]
    assert plans[0].works.epoch != plans[1].works.epoch
    assert plans[0].limits.leased_share == 0.5
    assert (plans[0].works.slot_bytes, plans[0].refresh_s) == (99, 7.0)
    assert plans[0].works.writer == WriterOptions(defer_s=0.0, give_up_s=30.0)


def test_a_spec_survives_its_file() -> None:
    tier = StoreTierConfig(path="/x", options={"segment_bytes": 1}, faults={"error": 0.5})
    spec = StoreSpec(config(tier), "ipc:///s", "/dev/shm/x", "secret", 0, 1.0)
    assert msgspec.json.decode(msgspec.json.encode(spec), type=StoreSpec) == spec
