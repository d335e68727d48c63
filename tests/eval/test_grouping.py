from __future__ import annotations

import itertools
import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.eval.grouping import (
    count_missed,
    find_worst,
    group_classes,
    group_quartiles,
    make_frame,
    measure_jain,
    summarise_group,
)
from bana.eval.judging import Judged, judge
from bana.eval.requests import Ending, Limits, Observed, Phase
from bana.eval.runs import Window
from bana.eval.summary import Dimension, Group, Spread

FRAME = make_frame(Window(0.0, 10.0))


def answer(
    due_s: float = 0.0, ttft_s: float = 0.5, slo_class: str = "default", length: int = 8
) -> Judged:
    """A one-token answer whose TTFT limit is 1 s."""
    first_s = due_s + ttft_s
    observed = Observed(
        index=0,
        due_s=due_s,
        ending=Ending.FINISHED,
        slo_class=slo_class,
        limits=Limits(ttft_s=1.0),
        phase=Phase.WINDOW,
        prompt_tokens=length,
        asked_tokens=1,
        sent_s=due_s,
        first_s=first_s,
        last_s=first_s,
        end_s=first_s,
        output_tokens=1,
    )
    return Judged(observed, judge(observed))


def group_with(attainment: float, name: str = "g", offered: int = 10) -> Group:
    empty = summarise_group(name, [], FRAME)
    share = Spread(attainment, attainment, attainment)
    return msgspec.structs.replace(empty, offered=offered, attainment=share)


def lengths_of(group: Group) -> tuple[int, int, int]:
    return group.prompt_tokens_low, group.prompt_tokens_high, group.offered


answers = st.lists(
    st.builds(
        answer,
        due_s=st.floats(0, 9.99),
        ttft_s=st.floats(0, 2),
        slo_class=st.sampled_from(["a", "b", "c"]),
        length=st.integers(0, 30),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=50, deadline=None)
@given(answers)
def test_attainment_and_goodput_are_exact(judged: list[Judged]) -> None:
    met = sum(1 for j in judged if j.observed.first_s - j.observed.due_s <= 1.0)
    group = summarise_group("all", judged, FRAME)

    assert (group.offered, group.met) == (len(judged), met)
    assert group.attainment.value == met / len(judged)
    assert group.goodput_rps.value == met / 10.0
    assert 0 <= group.attainment.low <= group.attainment.value <= group.attainment.high <= 1
    assert 0 <= group.goodput_rps.low <= group.goodput_rps.value <= group.goodput_rps.high
    assert sum(group.endings.values()) == len(judged)


@settings(max_examples=50, deadline=None)
@given(answers, st.randoms(use_true_random=False))
def test_groups_part_the_requests_in_any_order(
    judged: list[Judged], shuffler: random.Random
) -> None:
    shuffled = shuffler.sample(judged, len(judged))
    for make in (group_classes, group_quartiles):
        groups = make(judged, FRAME)

        assert groups == make(shuffled, FRAME)
        assert sum(g.offered for g in groups) == len(judged)
        assert sum(g.met for g in groups) == sum(j.is_met for j in judged)


@settings(max_examples=50, deadline=None)
@given(answers)
def test_quartiles_rise_without_parting_equal_lengths(judged: list[Judged]) -> None:
    groups = group_quartiles(judged, FRAME)
    distinct = len({j.observed.prompt_tokens for j in judged})

    assert 1 <= len(groups) <= min(4, distinct)
    assert all(g.offered > 0 for g in groups)
    for below, above in itertools.pairwise(groups):
        assert below.prompt_tokens_high < above.prompt_tokens_low


def test_distinct_lengths_make_four_equal_quartiles() -> None:
    groups = group_quartiles([answer(length=n) for n in range(1, 101)], FRAME)

    assert [lengths_of(g) for g in groups] == [
        (1, 25, 25),
        (26, 50, 25),
        (51, 75, 25),
        (76, 100, 25),
    ]
    assert [g.name for g in groups][0::3] == ["prompt 1-25", "prompt 76-100"]


def test_a_length_that_most_have_is_one_group() -> None:
    judged = [answer(length=n) for n in [5] * 80 + list(range(6, 26))]
    groups = group_quartiles(judged, FRAME)

    assert [(g.name, g.offered) for g in groups] == [("prompt 5", 80), ("prompt 6-25", 20)]
    assert [g.name for g in group_quartiles(judged[:80], FRAME)] == ["prompt 5"]
    assert group_quartiles([], FRAME) == ()


def test_classes_are_summarised_by_name() -> None:
    judged = [answer(slo_class="slow", ttft_s=3.0), answer(slo_class="fast"), answer()]
    groups = group_classes(judged, FRAME)

    assert [(g.name, g.met) for g in groups] == [("default", 1), ("fast", 1), ("slow", 0)]


def test_an_empty_group_is_all_zero() -> None:
    group = summarise_group("all", [], FRAME)

    assert (group.offered, group.met) == (0, 0)
    assert group.attainment == group.goodput_rps == Spread(0.0, 0.0, 0.0)


def test_only_limits_that_someone_has_are_counted() -> None:
    late, unlimited = answer(ttft_s=3.0), answer()
    observed = msgspec.structs.replace(unlimited.observed, limits=Limits())

    assert count_missed([late, unlimited]) == {Dimension.TTFT: 1, Dimension.NO_ANSWER: 0}
    assert count_missed([Judged(observed, judge(observed))]) == {Dimension.NO_ANSWER: 0}


def test_an_interval_is_wider_where_misses_come_together() -> None:
    late = [0.5 if i % 2 else 3.0 for i in range(200)]
    scattered = [answer(due_s=i / 20, ttft_s=late[i]) for i in range(200)]
    bunched = [answer(due_s=i / 20, ttft_s=sorted(late)[i]) for i in range(200)]
    even, uneven = (summarise_group("all", g, FRAME).attainment for g in (scattered, bunched))

    assert even.value == uneven.value == 0.5
    assert even.high - even.low < 0.1 < 0.3 < uneven.high - uneven.low


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_jain_lies_between_one_for_all_and_all_alike(shares: list[float]) -> None:
    index = measure_jain([group_with(share) for share in shares])

    if not any(shares):
        assert index is None
        return
    assert index is not None
    assert 1 / len(shares) - 1e-9 <= index <= 1 + 1e-9
    scaled = np.array(shares) / max(shares)
    assert index == pytest.approx(scaled.sum() ** 2 / (len(shares) * (scaled**2).sum()))


def test_jain_of_known_shares() -> None:
    assert measure_jain([group_with(0.7), group_with(0.7)]) == 1.0
    assert measure_jain([group_with(0.9), group_with(0.0), group_with(0.0)]) == pytest.approx(1 / 3)
    assert measure_jain([group_with(0.9)]) is None


def test_the_worst_class_attains_least_and_of_equals_is_the_larger() -> None:
    groups = [group_with(0.5, "b"), group_with(0.5, "a", offered=99), group_with(0.9, "c")]

    assert find_worst(groups) == "a"
    assert find_worst(groups[:1]) is None
