"""What is built for a daemon, and what it asks the placement policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bana.radix_global.daemon.placing import ROOMS_AGE_S, PolicyPlacer
from bana.radix_global.daemon.works import NoTiers, Tier, Works, WorksPlan
from bana.radix_global.reader.report import TierReport
from bana.radix_global.stores.memory import MemoryOptions, MemoryStore
from bana.radix_global.stores.store import PageOrigin
from bana.radix_global.writer.jobs import WriteEnd, WriteJob, WriteReport
from bana.radix_global.writer.options import WriterOptions
from bana.radix_global.writer.placement import PlacementChoice, PlacementView
from bana.slo.clock import ManualClock
from bana.slo.errors import ConfigError, StoreError


@pytest.fixture
def works(tmp_path: Path) -> Iterator[Any]:
    """A function: changes of the plan in, works over one memory tier out."""
    built: list[Works] = []

    def build(tiers: int = 1, **changes: Any) -> Works:
        plan: dict[str, Any] = {
            "arena_path": tmp_path / "arena",
            "arena_bytes": 400_000,
            "slot_bytes": 0,
            "epoch": 5,
            "reader": "completion",
            "reader_options": {},
            "placement": "all",
            "placement_options": {},
            **changes,
        }
        stores = [MemoryStore(MemoryOptions(2**20), ManualClock()) for _ in range(tiers)]
        named = {n: Tier(store, f"m{n}", 2) for n, store in enumerate(stores, 1)}
        built.append(Works(WorksPlan(**plan), named, ManualClock(), lambda: None))
        return built[-1]

    yield build
    for each in built:
        each.close(5.0)


def test_the_first_client_says_how_large_slots_are(works: Any) -> None:
    gear = works().make_gear(4096)
    assert gear.arena.layout.slot_bytes == 4096
    assert len(gear.spares) == 2


def test_a_size_that_is_configured_holds(works: Any) -> None:
    assert works(slot_bytes=8192).make_gear(4096).arena.layout.slot_bytes == 8192


def test_an_arena_must_hold_far_more_than_is_read_at_once(works: Any) -> None:
    with pytest.raises(ConfigError, match=r"store\.arena_bytes"):
        works(tiers=7, arena_bytes=300_000).make_gear(4096)


def test_wrong_policies_are_noticed_at_the_start(works: Any) -> None:
    for changes in ({"reader": "x"}, {"placement": "x"}, {"placement_options": {"x": 1}}):
        with pytest.raises(ConfigError):
            works(**changes)


def test_the_writer_gives_way_as_it_is_told(works: Any) -> None:
    """With room for nothing, all that is offered is crowded out at once."""
    built = works(writer=WriterOptions(max_bytes=1))
    gear = built.make_gear(4096)
    (slot,) = gear.arena.take(1)
    gear.writer.offer(WriteJob(b"k" * 16, PageOrigin(b"", 0), slot, 4096, 0b10))
    assert [page.end for page in built.take_written()] == [WriteEnd.CROWDED_OUT]


def test_the_arena_s_name_is_gone_when_all_is_closed(works: Any) -> None:
    built = works()
    path = built.make_gear(4096).arena.path
    assert path.exists()
    assert built.close(5.0) == 0
    assert not path.exists()


def test_before_there_is_an_arena_there_is_nothing_to_tell(works: Any) -> None:
    built = works()
    assert (built.take_reads(), built.take_written()) == ([], [])
    assert (built.read_reports(), built.write_reports(), built.weather().tiers) == ((), (), ())
    built.make_gear(4096)
    assert [(w.place, w.name, w.bytes_per_s) for w in built.weather().tiers] == [(1, "m1", 0.0)]


def test_without_tiers_nothing_is_read_or_written() -> None:
    nothing = NoTiers()
    assert nothing.want_all([]) == ()
    assert not nothing.hurry(b"", 0.0)
    assert not nothing.cancel(b"")
    assert nothing.choose_tiers(b"", 0, 9) == 0
    with pytest.raises(StoreError):
        nothing.offer(None)  # type: ignore[arg-type]


class Recording:
    """A policy that wants every place there could be."""

    def __init__(self) -> None:
        self.views: list[PlacementView] = []

    def choose_tiers(self, view: PlacementView) -> PlacementChoice:
        self.views.append(view)
        return PlacementChoice(0b1111_1111, "all")


def test_the_policy_sees_tiers_and_traffic_and_answers_within_its_law() -> None:
    policy, clock, asked = Recording(), ManualClock(1.0), []

    def read_reports() -> tuple[TierReport, ...]:
        asked.append(clock.now_s())
        return (TierReport(1, 2, 5e6, 0.1, 0, 0, 0, 0, 0, {}),)

    def write_reports() -> tuple[WriteReport, ...]:
        return tuple(WriteReport(tier, None, 0, 70 * tier, 0, 0, {}) for tier in (1, 2))

    placer = PolicyPlacer(policy, read_reports, write_reports, clock)
    assert placer.choose_tiers(b"k" * 16, 0b010, 3) == 0b100
    view = policy.views[0]
    assert [(r.tier, r.bandwidth_bytes_per_s, r.write_backlog_bytes) for r in view.tiers] == [
        (1, 5e6, 70),
        (2, None, 140),
    ]
    assert (view.held, view.reads, view.read_share) == (0b010, 3, 0.0)
    placer.note_read(2**24)
    placer.choose_tiers(b"k" * 16, 0, 0)
    assert policy.views[1].read_share == pytest.approx(0.5)
    placer.note_new(2**24)
    placer.choose_tiers(b"k" * 16, 0, 0)
    assert policy.views[2].read_share == pytest.approx(1 / 3)
    assert len(asked) == 1
    clock.advance(2 * ROOMS_AGE_S)
    placer.choose_tiers(b"k" * 16, 0, 0)
    assert len(asked) == 2
