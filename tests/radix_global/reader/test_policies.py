"""What each policy makes of tiers that are equal, unequal, slowing down or stalled."""

from __future__ import annotations

from typing import Any

import pytest

from bana.radix_global.reader.entries import Reading
from bana.radix_global.reader.policies import READERS, OpenPage
from bana.radix_global.reader.wanting import ReadEnd
from bana.radix_global.stores.store import ReadOutcome
from bana.slo.errors import ConfigError


def _slowing(speed: float, at_s: float, factor: float) -> Any:
    """A tier that is slower from `at_s` on."""

    def serve(_reading: Reading, now_s: float) -> tuple[ReadOutcome, float]:
        return ReadOutcome.READ, (1 if now_s < at_s else factor) / speed

    return serve


def _stalled(_reading: Reading, _now_s: float) -> tuple[ReadOutcome, float]:
    return ReadOutcome.READ, 1_000.0


@pytest.mark.parametrize("speeds", [(10.0, 10.0), (30.0, 10.0), (10.0, 100.0)])
def test_completion_gives_the_sum_of_the_tiers(
    speeds: tuple[float, float], play: Any, make_wants: Any, steady: Any
) -> None:
    tiers = {1: steady(speeds[0]), 2: steady(speeds[1])}
    played = play(make_wants(range(400)), tiers)
    assert {end.end for end in played.outcomes.values()} == {ReadEnd.READ}
    assert len(played.reads) == len(played.outcomes) == 400
    # All but the slower tier's last page.
    assert played.last_s <= 400 / sum(speeds) + 1 / min(speeds)


@pytest.mark.parametrize(("leave_factor", "last_s"), [(1.0, 0.03), (0.0, 1.0)])
def test_few_pages_come_no_later_from_two_tiers_than_from_the_faster_one(
    leave_factor: float, last_s: float, play: Any, make_wants: Any, steady: Any
) -> None:
    tiers = {1: steady(100.0), 2: steady(1.0)}
    played = play(
        make_wants(range(150)),
        tiers,
        policy_options={"leave_factor": leave_factor},
        stall_after_s=60,
        later={5.0: make_wants(range(200, 203))},
    )
    # The first pages teach how fast the tiers are; then three are wanted, and nothing else.
    ends_s = [played.ended_s[want.key] for want in make_wants(range(200, 203))]
    assert max(ends_s) == pytest.approx(5 + last_s)


def test_a_slow_tier_reads_what_only_it_holds_and_helps_with_many_pages(
    play: Any, make_wants: Any, steady: Any
) -> None:
    tiers = {1: steady(20.0), 2: steady(2.0)}
    played = play(make_wants(range(220)), tiers, later={20.0: make_wants([300], 0b100)})
    assert played.last_s == 20.5
    first = [end for key, end in played.ended_s.items() if end < 20]
    assert len(first) == 220
    assert max(first) <= 220 / 22 + 0.5
    assert 18 <= sum(read.tier == 2 for read in played.reads) <= 22


def test_a_tier_that_was_slow_is_tried_again_after_a_while(
    play: Any, make_wants: Any, steady: Any
) -> None:
    recovered = _slowing(1.0, at_s=5.0, factor=0.01)
    later = {
        at_s: make_wants(range(int(at_s) * 1_000, int(at_s) * 1_000 + 4)) for at_s in (6.0, 30.0)
    }
    played = play(make_wants(range(150)), {1: steady(100.0), 2: recovered}, later=later)
    tried = [read.begun_s for read in played.reads if read.tier == 2 and read.begun_s > 5]
    assert tried
    assert min(tried) == 30.0


def test_a_preset_split_falls_behind_when_a_tier_slows_and_completion_does_not(
    play: Any, make_wants: Any, steady: Any
) -> None:
    tiers = {1: steady(10.0), 2: _slowing(10.0, at_s=5.0, factor=5.0)}
    wants = make_wants(range(400))
    last_s = {name: play(wants, tiers, policy=name).last_s for name in READERS.names()}
    # 100 pages in the first 5 seconds, then 12 a second.
    assert last_s["completion"] == pytest.approx(5 + 300 / 12, rel=0.03)
    assert last_s["fixed_split"] == pytest.approx(5 + 150 / 2, rel=0.03)
    assert last_s["sequential"] == pytest.approx(40, rel=0.01)


def test_a_split_that_fits_the_tiers_is_as_good_as_completion(
    play: Any, make_wants: Any, steady: Any
) -> None:
    tiers = {1: steady(30.0), 2: steady(10.0)}
    played = play(
        make_wants(range(400)), tiers, policy="fixed_split", policy_options={"shares": [3, 1]}
    )
    assert played.last_s == pytest.approx(10, rel=0.01)


@pytest.mark.parametrize("widths", [{1: 1, 2: 1}, {1: 4, 2: 2}])
def test_a_stalled_tier_delays_nobody(
    widths: dict[int, int], play: Any, make_wants: Any, steady: Any
) -> None:
    both, only_good = make_wants(range(100)), make_wants(range(100, 120), 0b100)
    tiers = {1: _stalled, 2: steady(100.0)}
    played = play([*both, *only_good], tiers, widths=widths, stall_after_s=0.5)
    rate = 100.0 * widths[2]
    # Claimed pages wait for the stall to be noticed; all others go on meanwhile.
    assert played.last_s <= max(120 / rate, 0.5 + widths[1] / rate) + 1 / 100.0 + 1e-9
    assert {end.tier for end in played.outcomes.values()} == {2}
    assert sum(read.tier == 1 for read in played.reads) == widths[1]


def test_pages_of_a_stalled_tier_alone_end_at_their_deadline(
    play: Any, make_wants: Any, steady: Any
) -> None:
    stuck = make_wants(range(10), 0b10, deadline_s=3.0)
    fine = make_wants(range(10, 30), 0b110)
    played = play([*stuck, *fine], {1: _stalled, 2: steady(50.0)})
    ends = {key: end.end for key, end in played.outcomes.items()}
    assert {ends[want.key] for want in stuck} == {ReadEnd.LATE}
    assert {ends[want.key] for want in fine} == {ReadEnd.READ}
    assert played.last_s == 3.0


def test_sequential_has_one_read_under_way_and_takes_the_first_tier(
    play: Any, make_wants: Any, steady: Any
) -> None:
    tiers, widths = {1: steady(10.0), 2: steady(10.0)}, {1: 3, 2: 3}
    wants = [*make_wants(range(20)), *make_wants(range(20, 25), 0b100)]
    played = play(wants, tiers, widths=widths, policy="sequential")
    spans = sorted((read.begun_s, read.ended_s) for read in played.reads)
    assert all(begun >= ended for (begun, _), (_, ended) in zip(spans[1:], spans[:-1], strict=True))
    tier_of = {end.key: end.tier for end in played.outcomes.values()}
    assert [tier_of[want.key] for want in wants] == [1] * 20 + [2] * 5


def test_sequential_may_read_more_at_once_from_its_tier(
    play: Any, make_wants: Any, steady: Any
) -> None:
    tiers, widths = {1: steady(10.0), 2: steady(10.0)}, {1: 4, 2: 4}
    played = play(
        make_wants(range(40)),
        tiers,
        widths=widths,
        policy="sequential",
        policy_options={"reads_at_once": 4},
    )
    assert played.last_s == pytest.approx(1.0)
    assert {read.tier for read in played.reads} == {1}


def test_sequential_takes_the_next_tier_beside_a_stalled_read(
    play: Any, make_wants: Any, steady: Any
) -> None:
    wants = [*make_wants([0]), *make_wants([1, 2], 0b100)]
    played = play(wants, {1: _stalled, 2: steady(10.0)}, policy="sequential", stall_after_s=0.5)
    assert [played.ended_s[want.key] for want in wants] == pytest.approx([0.6, 0.7, 0.8])


def test_sequential_goes_on_with_other_tiers_beside_a_stalled_read(
    play: Any, make_wants: Any, steady: Any
) -> None:
    wants = [*make_wants([0], 0b10), *make_wants([1, 2], 0b100)]
    played = play(wants, {1: _stalled, 2: steady(10.0)}, policy="sequential", stall_after_s=0.5)
    assert [played.ended_s[want.key] for want in wants] == pytest.approx([1_000, 0.6, 0.7])


@pytest.mark.parametrize(("shares", "dealt"), [((), "1212"), ((3, 1), "1112"), ((2,), "1121")])
def test_a_fixed_split_deals_pages_out_in_turn(shares: tuple[int, ...], dealt: str) -> None:
    policy = READERS.create("fixed_split", {"shares": list(shares)})
    chosen = [policy.choose_tiers(OpenPage(bytes(16), n, 1, 0b110, 0), ()) for n in range(4)]
    assert "".join(str(choice.tiers.bit_length() - 1) for choice in chosen) == dealt


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fixed_split", {"shares": [0]}),
        ("fixed_split", {"shares": [1] * 8}),
        ("sequential", {"reads_at_once": 0}),
        ("completion", {"speed": 1}),
    ],
)
def test_no_such_policy(name: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        READERS.create(name, options)
