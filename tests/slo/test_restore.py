"""Each built-in policy fetches and waits as it says it does."""

from __future__ import annotations

from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.slo.errors import ConfigError
from bana.slo.fetching import RestoreView, TierView, list_candidates
from bana.slo.restore import RESTORES, RestorePlan, RestoreReason
from bana.slo.steps import EnginePrices, StepModel

NOW_S = 100.0
# A millisecond a token: 900 tokens take 0.9 s; 100 pages of 8 tokens are known.
PRICES = EnginePrices(StepModel(0.0, 0.001, 0.0, 0.0, 0.0, 0.0), 4096, 1.0)
VIEW = RestoreView(
    asked_s=NOW_S,
    deadline_s=NOW_S + 100.0,
    prompt_tokens=900,
    device_tokens=0,
    page_tokens=8,
    page_bytes=1000,
    known=b"\x02" * 100,
    arrived_pages=0,
    coming_pages=0,
    is_settled=False,
    prices=PRICES,
    delayed_requests=0,
    tiers=(TierView(1, 1e6, 0.0, 0.0),),
)


def change(**changed: object) -> RestoreView:
    return msgspec.structs.replace(VIEW, **changed)


def reading(bytes_per_s: float, latency_s: float = 0.0, ahead_bytes: float = 0.0) -> RestoreView:
    return change(tiers=(TierView(1, bytes_per_s, latency_s, ahead_bytes),))


def decide(
    view: RestoreView, policy: str = "planned", now_s: float = NOW_S, **options: object
) -> RestorePlan:
    return RESTORES.create(policy, options).decide_restore(view, now_s, Random(0))


@pytest.mark.parametrize("policy", ["planned", "always", "timeout", "arrived"])
@pytest.mark.parametrize("changed", [{"is_settled": True}, {"arrived_pages": 100}, {"known": b""}])
def test_nobody_waits_for_what_does_not_come(policy: str, changed: dict[str, object]) -> None:
    view = change(**changed)
    plan = decide(view, policy)
    assert plan == RestorePlan(view.arrived_pages, NOW_S, RestoreReason.COMPLETE)


@pytest.mark.parametrize(
    ("prompt_tokens", "wait_s"), [(8, 0.005), (400, 0.1), (100_000, 0.25)], ids=str
)
@pytest.mark.parametrize("policy", ["planned", "timeout", "arrived"])
def test_an_answer_is_worth_a_part_of_the_prompt(
    policy: str, prompt_tokens: int, wait_s: float
) -> None:
    plan = decide(change(known=None, prompt_tokens=prompt_tokens), policy)
    assert plan.reason is RestoreReason.UNANSWERED
    assert plan.until_s == pytest.approx(NOW_S + wait_s)


class TestPlanned:
    def test_a_fast_tier_gives_everything(self) -> None:
        # 0.1 s of reading against 0.8 s of computing.
        plan = decide(reading(1e6))
        assert (plan.pages, plan.reason) == (100, RestoreReason.FETCH)
        assert plan.until_s == pytest.approx(NOW_S + 1.25 * 0.1, abs=0.01)

    def test_a_slow_tier_gives_nothing(self) -> None:
        # 2 s of reading against 0.8 s of computing.
        assert decide(reading(5e4)) == RestorePlan(0, NOW_S, RestoreReason.COMPUTE)

    def test_a_tier_with_others_pages_before_ours_gives_nothing(self) -> None:
        assert decide(reading(1e6, ahead_bytes=2e6)).reason is RestoreReason.COMPUTE
        assert decide(reading(1e6, latency_s=2.0)).reason is RestoreReason.COMPUTE

    def test_pages_at_hand_are_taken_and_slow_ones_computed(self) -> None:
        view = change(
            known=b"\x02" * 40 + b"\x04" * 60,
            tiers=(
                TierView(1, 1e6, 0.0, 0.0),
                TierView(2, 1e4, 0.0, 0.0),
            ),
        )
        plan = decide(view)
        assert plan.reason is RestoreReason.PARTIAL
        # The nearest of the compared ways to cut the prompt.
        assert 35 <= plan.pages <= 40

    def test_who_will_come_makes_computing_a_little_dearer(self) -> None:
        # 1 s of reading against 0.8 s of computing.
        assert decide(reading(1e5)).pages == 100
        assert decide(reading(1e5), engine=1.0).reason is RestoreReason.COMPUTE

    def test_who_waits_besides_makes_computing_dear(self) -> None:
        view = reading(5e4)
        waiting = msgspec.structs.replace(view, delayed_requests=1)
        assert decide(waiting).reason is RestoreReason.FETCH
        assert decide(waiting, others=0.0).reason is RestoreReason.COMPUTE
        many = msgspec.structs.replace(view, delayed_requests=1000)
        assert decide(many, most_others=0).reason is RestoreReason.COMPUTE

    def test_a_budget_is_kept_whoever_waits(self) -> None:
        # All pages by 1 s, and a tenth of a second is computed then.
        waiting = msgspec.structs.replace(reading(1e5), delayed_requests=9)
        tight = msgspec.structs.replace(waiting, deadline_s=NOW_S + 1.13)
        assert decide(tight).pages == 100
        tighter = msgspec.structs.replace(waiting, deadline_s=NOW_S + 1.124)
        assert decide(tighter).pages < 100

    def test_a_wait_ends_while_computing_still_keeps_the_budget(self) -> None:
        view = msgspec.structs.replace(reading(2e5), deadline_s=NOW_S + 1.4)
        plan = decide(view)
        # 0.9 s is to be computed where nothing arrives, with a guard of 1.25.
        assert plan.reason is RestoreReason.BUDGET
        assert plan.until_s == pytest.approx(NOW_S + 1.4 - 1.25 * 0.9)
        assert decide(view, now_s=NOW_S + 0.3).until_s < NOW_S + 0.3

    def test_what_others_compute_is_waited_for_with_patience(self) -> None:
        view = change(known=b"", coming_pages=100)
        plan = decide(view)
        assert (plan.pages, plan.reason) == (100, RestoreReason.ELSEWHERE)
        assert plan.until_s == pytest.approx(NOW_S + 16 * 0.9)
        # 50 pages have come since, and 0.5 s would be left to compute.
        later = change(known=b"\x01" * 50, arrived_pages=50, coming_pages=50)
        tight = msgspec.structs.replace(later, deadline_s=NOW_S + 2.0)
        plan = decide(tight)
        assert plan.reason is RestoreReason.BUDGET
        assert plan.until_s == pytest.approx(NOW_S + 2.0 - 1.25 * 0.5)
        ended = change(known=b"\x01" * 50, arrived_pages=50, is_settled=True)
        assert decide(ended).reason is RestoreReason.COMPLETE

    def test_a_lost_budget_bounds_nothing(self) -> None:
        view = msgspec.structs.replace(reading(1e6), deadline_s=NOW_S - 5.0)
        assert decide(view).reason is RestoreReason.FETCH

    def test_a_wait_never_lasts_longer_than_it_can_save(self) -> None:
        # Nothing came, although the tier says that it is quick.
        late_s = NOW_S + 0.79
        plan = decide(reading(1e6), now_s=late_s, engine=1.0)
        assert plan.reason is RestoreReason.WORTH
        assert plan.until_s == pytest.approx(NOW_S + 0.8)
        assert decide(reading(1e6), now_s=NOW_S + 0.81, engine=1.0).until_s < NOW_S + 0.81

    def test_a_wait_in_vain_is_thought_over_ever_less_often(self) -> None:
        now_s, plans = NOW_S, 0
        while (plan := decide(reading(1e12), now_s=now_s, engine=1.0)).until_s > now_s:
            now_s, plans = plan.until_s, plans + 1
        assert now_s == pytest.approx(NOW_S + 0.8)
        assert 10 < plans < 60

    def test_without_prices_it_waits_for_a_time(self) -> None:
        plan = decide(change(prices=None), most_s=3.0)
        assert plan == RestorePlan(100, NOW_S + 3.0, RestoreReason.UNPRICED)
        longest = decide(reading(1e6), most_s=0.05)
        assert longest.reason is RestoreReason.LONGEST

    @settings(deadline=None)
    @given(
        known=st.lists(st.sampled_from([1, 2, 4, 6]), min_size=1, max_size=40),
        bytes_per_s=st.floats(1e3, 1e7),
        delayed=st.integers(0, 30),
        budget_s=st.floats(0.01, 10),
    )
    def test_no_other_cut_is_better(
        self, known: list[int], bytes_per_s: float, delayed: int, budget_s: float
    ) -> None:
        view = change(
            known=bytes(known),
            delayed_requests=delayed,
            deadline_s=NOW_S + budget_s,
            tiers=(TierView(1, bytes_per_s, 0.01, 0.0), TierView(2, 2e4, 0.0, 500.0)),
        )
        found = list_candidates(view, PRICES)
        keeps = found.arrival_s + 1.25 * found.compute_s <= budget_s
        weight = 1.5 + 3.0 * min(delayed, 4)
        if keeps.any():
            cost = np.where(keeps, found.arrival_s + weight * found.compute_s, np.inf)
        else:
            cost = found.arrival_s + found.compute_s
        plan = decide(view)
        chosen = found.pages.tolist().index(plan.pages)
        assert cost[chosen] == cost.min()


class TestBaselines:
    def test_always_waits_for_all(self) -> None:
        plan = decide(reading(1.0), "always", most_s=7.0)
        assert plan == RestorePlan(100, NOW_S + 7.0, RestoreReason.FIXED)
        assert decide(change(known=None), "always").until_s == NOW_S + 60.0

    def test_never_does_not_ask(self) -> None:
        assert not RESTORES.create("never").asks
        assert decide(VIEW, "never").until_s == NOW_S

    def test_timeout_waits_in_proportion(self) -> None:
        plan = decide(VIEW, "timeout", base_s=1.0, ki_token_s=0.5)
        assert plan.until_s == pytest.approx(NOW_S + 1.0 + 0.5 * 800 / 1024)

    @given(st.integers(0, 99))
    def test_arrived_takes_what_there_is(self, arrived: int) -> None:
        plan = decide(change(arrived_pages=arrived), "arrived")
        assert plan == RestorePlan(arrived, NOW_S, RestoreReason.FIXED)


def test_computing_meets_fetching_where_both_have_taken_as_long() -> None:
    # 100 pages of 1,000 bytes in 0.8 s, or 800 tokens in 0.8 s.
    view = msgspec.structs.replace(reading(125_000.0), can_meet=True)
    assert decide(view).meet_page == 0
    plan = decide(view, meet=True)
    assert (plan.reason, plan.until_s, plan.pages) == (RestoreReason.MEET, NOW_S, 0)
    # A second of the engine costs half as much again as a second of waiting.
    assert 40 <= plan.meet_page <= 51


@pytest.mark.parametrize(
    "changed",
    [
        {"can_meet": False},
        {"delayed_requests": 1},
        {"tiers": (TierView(1, 1e9, 0.0, 0.0),)},
        {"tiers": (TierView(1, 10.0, 0.0, 0.0),)},
        {"known": b"\x02"},
        {"known": b"\x01" * 100},
    ],
    ids=str,
)
def test_nobody_parts_from_pages_where_it_gains_little(changed: dict[str, object]) -> None:
    view = msgspec.structs.replace(reading(125_000.0), can_meet=True)
    assert decide(msgspec.structs.replace(view, **changed), meet=True).meet_page == 0


def test_bad_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'guard'"):
        RESTORES.create("planned", {"gard": 1})
    with pytest.raises(ConfigError, match="worth"):
        RESTORES.create("planned", {"worth": -1.0})
    with pytest.raises(ConfigError, match="planned"):
        RESTORES.create("plan")
