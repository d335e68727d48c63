"""From `[store]` to the daemon's tiers and plan; ConfigError where an entry cannot be used."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec

from bana.radix_global.daemon.daemon import DaemonPlan
from bana.radix_global.daemon.limits import StoreLimits
from bana.radix_global.daemon.works import Tier, WorksPlan
from bana.radix_global.reader.policies import READERS
from bana.radix_global.stores.directory import DirectoryStore
from bana.radix_global.stores.faulty import Fault, FaultOptions, FaultyStore
from bana.radix_global.stores.memory import MemoryOptions, MemoryStore
from bana.radix_global.stores.options import DirectoryOptions
from bana.radix_global.stores.remote import RemoteOptions, RemoteStore
from bana.radix_global.stores.store import Store
from bana.radix_global.stores.throttled import Throttle, ThrottledStore
from bana.radix_global.writer.options import WriterOptions
from bana.radix_global.writer.placement import PLACEMENTS
from bana.slo.clock import WaitingClock
from bana.slo.errors import ConfigError, describe_unknown
from bana.slo.restore import RESTORES
from sglang_bana.config import StoreConfig, StoreSpec, StoreTierConfig, TierKind, expand_home
from sglang_bana.store.mooncake import MooncakeClient
from sglang_bana.store.mooncake_options import MooncakeOptions

# Rows of the index: some 200 bytes each once they are used.
MAX_AUTOMATIC_PAGES = 8_000_000
ARENA_PAGES = 1_000_000
MAX_LEASES = 200_000
STALL_KEY = "stall_s"
SEED_KEY = "seed"
_R = TypeVar("_R")


def check_store(config: StoreConfig) -> None:
    """ConfigError at the first entry that a daemon would refuse; touches no storage."""
    READERS.create(config.reader, config.reader_options)
    RESTORES.create(config.restore, config.restore_options)
    PLACEMENTS.create(config.placement, config.placement_options)
    writer_options(config)
    names: set[str] = set()
    for number, tier in enumerate(config.tiers, 1):
        where = f"store.tiers {number}"
        if tier.kind is TierKind.DIRECTORY:
            locate_tier(tier, where)
            directory_options(tier, where)
        elif tier.kind is TierKind.MOONCAKE:
            if tier.path:
                raise ConfigError(f"{where}: a mooncake tier has no path; name options.master")
            mooncake_options(tier, where)
        elif tier.path or tier.options:
            raise ConfigError(f"{where}: a memory tier has no path and no options; remove them")
        throttle_of(tier, where)
        faults_of(tier, where)
        if tier_name(tier, number) in names:
            raise ConfigError(f"{where}: another tier is called {tier.name!r}; choose another name")
        names.add(tier_name(tier, number))


def build_tiers(config: StoreConfig, clock: WaitingClock, rng: Random) -> tuple[Tier, ...]:
    """The tiers, opened; ConfigError where one of them cannot be had."""
    built: list[Tier] = []
    try:
        for number, tier in enumerate(config.tiers, 1):
            store = _build_store(tier, f"store.tiers {number}", clock, rng)
            built.append(Tier(store, tier_name(tier, number), tier.width))
    except ConfigError:
        for done in built:
            done.store.close()
        raise
    return tuple(built)


def build_plan(spec: StoreSpec, rng: Random) -> DaemonPlan:
    """What the daemon is told."""
    config = spec.store
    return DaemonPlan(
        endpoint=spec.endpoint,
        secret=spec.secret,
        pid=os.getpid(),
        index_pages=config.index_pages or count_index_pages(config),
        max_leases=MAX_LEASES,
        refresh_s=config.refresh_s,
        limits=StoreLimits(
            max_owners=config.max_owners,
            max_wants=config.max_wants,
            reserved_pages=config.reserved_pages,
            leased_share=config.leased_share,
            reserved_share=config.reserved_share,
            reading_share=config.reading_share,
            writing_share=config.writing_share,
            pinned_share=config.pinned_share,
        ),
        works=WorksPlan(
            arena_path=Path(spec.arena_path),
            arena_bytes=config.arena_bytes,
            slot_bytes=config.slot_bytes,
            epoch=rng.getrandbits(63) | 1,
            reader=config.reader,
            reader_options=config.reader_options,
            placement=config.placement,
            placement_options=config.placement_options,
            writer=writer_options(config),
        ),
    )


def count_index_pages(config: StoreConfig) -> int:
    """How many pages the index must know for all tiers, within reason."""
    tiers = (_count_pages(tier) for tier in config.tiers)
    return min(MAX_AUTOMATIC_PAGES, ARENA_PAGES + sum(tiers))


def tier_name(tier: StoreTierConfig, number: int) -> str:
    """What the tier is called."""
    return tier.name or f"{tier.kind}-{number}"


def locate_tier(tier: StoreTierConfig, where: str) -> Path:
    """The folder of a directory tier."""
    if not tier.path:
        raise ConfigError(f"{where}: a directory tier needs a path; name a folder")
    return expand_home(tier.path).absolute()


def directory_options(tier: StoreTierConfig, where: str) -> DirectoryOptions:
    """The options of a directory tier, its capacity among them."""
    if "capacity_bytes" in tier.options:
        raise ConfigError(f"{where}: write capacity_bytes beside options, not in it")
    given = {**tier.options, "capacity_bytes": tier.capacity_bytes}
    return _convert(given, DirectoryOptions, f"{where}: option")


def mooncake_options(tier: StoreTierConfig, where: str) -> MooncakeOptions:
    """The options of a mooncake tier."""
    return _convert(tier.options, MooncakeOptions, f"{where}: option")


def memory_bytes(tier: StoreTierConfig) -> int:
    """What the tier takes of this host's memory, beside the arena."""
    if tier.kind is TierKind.MEMORY:
        return tier.capacity_bytes
    return mooncake_options(tier, "").memory_bytes if tier.kind is TierKind.MOONCAKE else 0


def writer_options(config: StoreConfig) -> WriterOptions:
    """How writes give way to reads."""
    return _convert(config.writer_options, WriterOptions, "store.writer_options: key")


def throttle_of(tier: StoreTierConfig, where: str) -> Throttle | None:
    """How slow the tier is made, None where it is not."""
    if not tier.throttle:
        return None
    return _convert(tier.throttle, Throttle, f"{where}: throttle key")


def faults_of(tier: StoreTierConfig, where: str) -> FaultOptions | None:
    """How faulty the tier is made, None where it is not."""
    if not tier.faults:
        return None
    known = [str(fault) for fault in Fault]
    _refuse_unknown(tier.faults, (*known, STALL_KEY, SEED_KEY), f"{where}: fault")
    shares = {fault: tier.faults[fault] for fault in Fault if fault in tier.faults}
    return FaultOptions(shares, tier.faults.get(STALL_KEY, 0.0))


def _build_store(tier: StoreTierConfig, where: str, clock: WaitingClock, rng: Random) -> Store:
    store: Store
    if tier.kind is TierKind.DIRECTORY:
        options = directory_options(tier, where)
        store = DirectoryStore(locate_tier(tier, where), options, Random(rng.getrandbits(64)))
    elif tier.kind is TierKind.MOONCAKE:
        pool = mooncake_options(tier, where)
        bounds = RemoteOptions(tier.capacity_bytes, pool.max_pages)
        store = RemoteStore(MooncakeClient(pool, clock), bounds, clock)
    else:
        store = MemoryStore(MemoryOptions(tier.capacity_bytes), clock)
    throttle, faults = throttle_of(tier, where), faults_of(tier, where)
    if throttle is not None:
        store = ThrottledStore(store, throttle, clock, Random(rng.getrandbits(64)))
    if faults is not None:
        drawn = tier.faults.get(SEED_KEY, rng.getrandbits(64))
        store = FaultyStore(store, faults, clock, Random(drawn))
    return store


def _count_pages(tier: StoreTierConfig) -> int:
    if tier.kind is TierKind.DIRECTORY:
        return directory_options(tier, "").max_pages
    return mooncake_options(tier, "").max_pages if tier.kind is TierKind.MOONCAKE else 0


def _convert(given: Mapping[str, object], kind: type[_R], what: str) -> _R:
    known: Any = kind
    _refuse_unknown(given, (field.name for field in fields(known)), what)
    try:
        return msgspec.convert(dict(given), kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{what}s {dict(given)}: {error}; correct it") from error


def _refuse_unknown(given: Iterable[str], known: Iterable[str], what: str) -> None:
    names = tuple(known)
    for name in given:
        if name not in names:
            raise ConfigError(describe_unknown(what, name, names))
