"""How many copies each policy spends, and where they go."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from bana.radix_global.writer.placement import PLACEMENTS, Placement, PlacementView, TierRoom
from bana.radix_global.writer.traffic import Traffic
from bana.slo.errors import ConfigError

MIB = 2**20
PAGE_BYTES = 2 * MIB


def _rooms(*bandwidths: float | None, backlog_bytes: int = 0) -> tuple[TierRoom, ...]:
    return tuple(TierRoom(n + 1, width, backlog_bytes) for n, width in enumerate(bandwidths))


def _view(number: int = 0, **given: Any) -> PlacementView:
    key = (number * 0x9E3779B97F4A7C15 % 2**128).to_bytes(16, "big")
    rooms = _rooms(100.0, 100.0, 100.0)
    facts = {"held": 0, "reads": 0, "read_share": 0.0, "tiers": rooms, **given}
    return PlacementView(key, **facts)


def _copies(policy: Placement, **given: Any) -> int:
    return policy.choose_tiers(_view(**given)).tiers.bit_count()


@pytest.mark.parametrize(("bandwidths", "share"), [((1e9, 1e9), 0.5), ((3e9, 1e9), 0.75)])
def test_single_copies_are_spread_by_bandwidth(
    bandwidths: tuple[float, float], share: float
) -> None:
    policy = PLACEMENTS.create("one")
    rooms = _rooms(*bandwidths)
    first = Counter(policy.choose_tiers(_view(n, tiers=rooms)).tiers for n in range(2_000))
    assert set(first) == {0b10, 0b100}
    assert first[0b10] / 2_000 == pytest.approx(share, abs=0.04)


def test_a_stalled_tier_is_the_last_to_be_chosen_and_an_unknown_one_is_tried() -> None:
    policy = PLACEMENTS.create("one")
    stalled = Counter(
        policy.choose_tiers(_view(n, tiers=_rooms(0.0, 1e9))).tiers for n in range(500)
    )
    assert stalled == {0b100: 500}
    unknown = Counter(
        policy.choose_tiers(_view(n, tiers=_rooms(None, 1e9))).tiers for n in range(500)
    )
    assert 150 < unknown[0b10] < 350


def test_hot_pages_go_everywhere_and_others_nowhere_but_once() -> None:
    policy = PLACEMENTS.create("hot", {"hot_reads": 3})
    assert _copies(policy) == 1
    assert _copies(policy, held=0b10, reads=2) == 0
    assert policy.choose_tiers(_view(held=0b10, reads=3)).tiers == 0b1100


def test_all_means_all_that_lack_it() -> None:
    policy = PLACEMENTS.create("all")
    assert _copies(policy) == 3
    assert policy.choose_tiers(_view(held=0b100)).tiers == 0b1010


@pytest.mark.parametrize(
    ("read_share", "copies"), [(0.0, 1), (0.04, 1), (0.5, 1), (0.79, 1), (0.81, 2), (0.9, 3)]
)
def test_adaptive_spends_as_many_copies_as_reads_pay_for(read_share: float, copies: int) -> None:
    policy = PLACEMENTS.create("adaptive")
    assert _copies(policy, read_share=read_share) == copies


def test_adaptive_adds_what_is_missing_when_reads_come_to_pay() -> None:
    policy = PLACEMENTS.create("adaptive")
    assert _copies(policy, held=0b10, read_share=0.04) == 0
    assert _copies(policy, held=0b10, read_share=0.81) == 1
    assert _copies(policy, held=0b110, read_share=0.81) == 0
    assert _copies(policy, held=0b1110, read_share=1.0) == 0


def test_adaptive_adds_nothing_to_tiers_that_are_behind() -> None:
    policy = PLACEMENTS.create("adaptive")
    behind = _rooms(100.0, 100.0, 100.0, backlog_bytes=65 * MIB)
    assert _copies(policy, read_share=0.99, tiers=behind) == 1


def _written(policy: Placement, sharing: float, pages: int = 4_000) -> float:
    """Copies of each new page when `sharing` of all pages are found on a tier."""
    traffic, rooms, written, new = Traffic(), _rooms(1e9, 1e9, 1e9), 0, 0
    for number in range(pages):
        now_s = number * 0.01
        is_shared = (number + 1) * sharing // 1 > number * sharing // 1
        if is_shared:
            traffic.note_read(PAGE_BYTES, now_s)
            continue
        traffic.note_new(PAGE_BYTES, now_s)
        view = _view(number, tiers=rooms, read_share=traffic.read_share(now_s))
        new += 1
        written += policy.choose_tiers(view).tiers.bit_count()
    return written / new


def test_at_four_percent_sharing_adaptive_writes_what_one_copy_does() -> None:
    adaptive, everywhere = PLACEMENTS.create("adaptive"), PLACEMENTS.create("all")
    assert _written(adaptive, 0.04) == 1
    assert _written(adaptive, 0.5) == 1
    assert _written(everywhere, 0.04) == 3
    assert _written(adaptive, 0.95) > 2.5


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("hot", {"hot_reads": 0}),
        ("adaptive", {"gain": 1.5}),
        ("adaptive", {"gain": float("nan")}),
        ("adaptive", {"busy_bytes": -1}),
        ("one", {"copies": 2}),
    ],
)
def test_no_such_policy(name: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        PLACEMENTS.create(name, options)
