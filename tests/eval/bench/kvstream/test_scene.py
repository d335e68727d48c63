"""How fast tiers are made, and that a launch accepts what every step is configured with."""

from __future__ import annotations

from pathlib import Path

import pytest

from bana.eval.bench.config_file import write_config
from bana.eval.bench.harness import Scale
from bana.eval.bench.kvstream.scene import (
    Seen,
    configure_filler,
    configure_step,
    list_flags,
    plan_arena,
    plan_tiers,
)
from bana.eval.bench.kvstream.settings import (
    DEFAULT,
    SCALES,
    estimate_minutes,
)
from bana.eval.bench.kvstream.steps import NO_STORE, PLAIN, STEPS
from bana.radix_global.daemon.works import SLOTS_PER_READ
from sglang_bana.config import BanaConfig, StoreConfig
from sglang_bana.config_sources import ConfigRequest, load_config

# As SmolLM2 in float32 on a slow core.
SEEN = Seen(prefill_s=4.0, page_bytes=737_280)
SLOW = Seen(prefill_s=40.0, page_bytes=737_280)


def launched(tree: dict[str, dict[str, object]], folder: Path) -> BanaConfig:
    """What a launch makes of it, from its file."""
    path = folder / "bana.toml"
    write_config(path, tree)
    return load_config(ConfigRequest(str(path), {}, ()), {}).config


@pytest.fixture
def configs(tmp_path: Path) -> dict[str, BanaConfig]:
    """What every step is launched with."""
    folders = [tmp_path / "tier1", tmp_path / "tier2"]
    return {
        step.name: launched(configure_step(step, DEFAULT, SEEN, folders), tmp_path)
        for step in STEPS
    }


@pytest.mark.parametrize("seen", [SEEN, SLOW])
def test_a_tier_brings_a_document_sooner_than_it_is_computed(seen: Seen) -> None:
    first, second = plan_tiers(DEFAULT, seen)
    document_bytes = DEFAULT.document_pages * seen.page_bytes
    assert document_bytes / first.bandwidth_bytes_per_s == pytest.approx(0.6 * seen.prefill_s)
    assert second.bandwidth_bytes_per_s == pytest.approx(0.6 * first.bandwidth_bytes_per_s)
    for tier in (first, second):
        page_s = seen.page_bytes / tier.bandwidth_bytes_per_s
        assert tier.latency_s == pytest.approx(0.25 * page_s)


def test_each_step_has_what_the_one_before_it_has_and_one_thing_more(
    configs: dict[str, BanaConfig],
) -> None:
    stores = {name: config.store for name, config in configs.items()}
    assert [name for name, store in stores.items() if not store.enabled] == [NO_STORE]
    told = {
        name: (
            len(store.tiers),
            store.reader,
            store.tiers[0].width,
            store.placement,
            store.writer_options["defer_s"],
        )
        for name, store in stores.items()
        if store.enabled
    }
    assert told == {
        PLAIN: (1, "sequential", 1, "one", 0.0),
        "batched": (1, "completion", 4, "one", 0.0),
        "deferred": (1, "completion", 4, "one", 4.8),
        "second_tier": (2, "fixed_split", 4, "adaptive", 4.8),
        "completion": (2, "completion", 4, "adaptive", 4.8),
    }
    assert len({str(config.slo) for config in configs.values()}) == 1
    assert all(config.scheduling.is_stock for config in configs.values())


def test_a_throttle_is_what_was_planned(configs: dict[str, BanaConfig]) -> None:
    tiers = configs["completion"].store.tiers
    planned = plan_tiers(DEFAULT, SEEN)
    assert [tier.throttle["bandwidth_bytes_per_s"] for tier in tiers] == [
        speed.bandwidth_bytes_per_s for speed in planned
    ]
    assert [Path(tier.path).name for tier in tiers] == ["tier1", "tier2"]


def test_the_tiers_are_filled_everywhere_and_not_slowed(tmp_path: Path) -> None:
    tree = configure_filler(DEFAULT, [tmp_path / "tier1", tmp_path / "tier2"])
    store = launched(tree, tmp_path).store
    assert store.placement == "all"
    assert [tier.throttle for tier in store.tiers] == [{}, {}]


@pytest.mark.parametrize("scale", list(Scale))
def test_what_is_out_fits_and_what_was_asked_is_gone_before_it_is_asked_again(
    scale: Scale,
) -> None:
    settings = SCALES[scale]
    assert settings.document_tokens % settings.chunk_tokens == 0
    asked = settings.document_tokens + settings.question_tokens
    assert settings.concurrency * (asked + settings.output_tokens) <= settings.pool_tokens
    # Beside what is read there is room for new pages that wait to be written, and for more of them.
    reading = StoreConfig().reading_share * settings.arena_documents
    assert settings.concurrency <= reading
    assert settings.concurrency + settings.new_documents + 2 <= settings.arena_documents
    slots = plan_arena(settings, SEEN) // SEEN.page_bytes
    reads = sum(step.width for step in STEPS[-1:]) * len(settings.tier_speeds)
    assert slots >= SLOTS_PER_READ * (reads + 1)
    if settings.rounds > 1:
        # Between two questions to a document all others are asked.
        assert settings.requests - 1 > settings.arena_documents > settings.pool_documents
    held = settings.documents + settings.rounds * settings.new_documents
    assert list_flags(settings)[1] == "16"
    if scale is not Scale.QUICK:
        # Two copies of each segment may stand beside each other.
        room = settings.tier_capacity_bytes - 2 * settings.segment_bytes
        assert 1.2 * held * settings.document_pages * SEEN.page_bytes < room


@pytest.mark.parametrize("scale", [Scale.DEFAULT, Scale.FULL])
def test_what_claims_something_is_repeated(scale: Scale) -> None:
    settings = SCALES[scale]
    assert settings.starts * settings.rounds >= 5
    assert settings.starts >= 3
    assert settings.model == "smollm2"


def test_the_default_ends_in_time() -> None:
    assert estimate_minutes(DEFAULT) < 40
