from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from bana.eval.requests import Ending, Validity
from bana.eval.sentence import (
    compose_capacity,
    compose_sentence,
    tell_number,
    tell_rate,
    tell_share,
)
from bana.eval.summary import (
    Dimension,
    Group,
    Latencies,
    MaxRate,
    Spread,
    Summary,
)


def group(
    name: str,
    offered: int,
    missed: Mapping[Dimension, int],
    endings: Mapping[Ending, int] | None = None,
    met: int | None = None,
) -> Group:
    kept = offered - max(missed.values(), default=0) if met is None else met
    share = kept / offered if offered else 0.0
    return Group(
        name=name,
        offered=offered,
        met=kept,
        attainment=Spread(share, share, share),
        goodput_rps=Spread(kept / 60, kept / 60, kept / 60),
        endings=endings or {Ending.FINISHED: offered},
        missed=missed,
        latencies=Latencies(None, None, None, None, None, None),
        prompt_tokens_low=1,
        prompt_tokens_high=9,
    )


def sentence_of(overall: Group, **changes: Any) -> str:
    summary = Summary(
        target="t",
        seed=1,
        fingerprint="f",
        workload={},
        validity=Validity(True),
        is_interrupted=False,
        window_s=60.0,
        duration_s=72.5,
        offered_rps=overall.offered / 60,
        arrival_cv=None,
        input_tokens_per_s=0.0,
        output_tokens_per_s=0.0,
        lateness_s=None,
        overall=overall,
        classes=(),
        quartiles=(),
        jain_index=None,
        worst_class=None,
        probe_ttft_s=None,
        probes_failed=0,
        balance=None,
        cached_share=None,
        sentence="",
    )
    return compose_sentence(msgspec.structs.replace(summary, **changes))


LATE = group(
    "all",
    480,
    {Dimension.TTFT: 26, Dimension.TPOT: 4, Dimension.NO_ANSWER: 0},
    met=452,
)


def test_the_sentence_says_the_answer_and_what_limited_it() -> None:
    classes = (
        group("batch", 380, {Dimension.TTFT: 16}),
        group("interactive", 100, {Dimension.TTFT: 12}),
    )

    assert sentence_of(LATE, classes=classes, worst_class="interactive") == (
        "94.1 % of 480 requests met their limits at 8 requests/s (goodput 7.53/s); "
        "what limited it: TTFT, missed by 26 of 28; worst class: interactive (88 %)."
    )


def test_one_class_is_not_the_worst() -> None:
    assert "worst" not in sentence_of(LATE, classes=(group("default", 480, LATE.missed),))


def test_nothing_missed_is_said_so() -> None:
    whole = group("all", 480, {Dimension.TTFT: 0, Dimension.NO_ANSWER: 0})

    assert sentence_of(whole) == (
        "All of 480 requests met their limits at 8 requests/s (goodput 8/s); "
        "nothing limited it at this rate."
    )


def test_missing_answers_are_named_by_their_fate() -> None:
    endings = {Ending.FINISHED: 90, Ending.REJECTED: 7, Ending.CUT: 3}
    shed = group("all", 100, {Dimension.TTFT: 2, Dimension.NO_ANSWER: 11}, endings, met=87)

    assert "no answer to 11 of 13 (7 rejected, 3 cut, 1 empty)" in sentence_of(shed)


def test_of_equally_missed_limits_no_answer_weighs_most() -> None:
    shed = group(
        "all",
        100,
        {Dimension.TTFT: 5, Dimension.E2E: 5, Dimension.NO_ANSWER: 5},
        {Ending.FINISHED: 95, Ending.UNFINISHED: 5},
    )

    assert "no answer to 5 of 5 (5 unfinished)" in sentence_of(shed)


@pytest.mark.parametrize(
    ("dimension", "word"), [(Dimension.TPOT, "TPOT"), (Dimension.E2E, "end to end")]
)
def test_every_limit_can_be_the_one(dimension: Dimension, word: str) -> None:
    missed = {Dimension.TTFT: 1, dimension: 3, Dimension.NO_ANSWER: 0}

    assert f"{word}, missed by 3 of 3" in sentence_of(group("all", 10, missed))


def test_nothing_answered_is_said_so() -> None:
    endings = {Ending.REJECTED: 400, Ending.UNFINISHED: 80}
    dead = group("all", 480, {Dimension.TTFT: 80, Dimension.NO_ANSWER: 480}, endings)

    assert sentence_of(dead) == (
        "None of 480 requests was answered at 8 requests/s: 400 rejected, 80 unfinished."
    )


def test_a_run_without_limits_claims_none_were_met() -> None:
    endings = {Ending.FINISHED: 477, Ending.FAILED: 3}

    assert sentence_of(group("all", 480, {Dimension.NO_ANSWER: 3}, endings)) == (
        "477 of 480 requests were answered at 8 requests/s (3 failed); no limits were set."
    )
    assert sentence_of(group("all", 480, {Dimension.NO_ANSWER: 0})) == (
        "480 of 480 requests were answered at 8 requests/s; no limits were set."
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"validity": Validity(False, ("late", "full"))}, "late; full."),
        ({"validity": Validity(False)}, "it is not valid."),
        ({"is_interrupted": True}, "it was interrupted after 72.5 s."),
    ],
)
def test_what_proves_nothing_says_so_first(changes: dict[str, Any], said: str) -> None:
    sentence = sentence_of(LATE, **changes)

    assert sentence.startswith(f"This run proves nothing: {said} 94.1 % of 480")


def test_an_empty_window_measured_nothing() -> None:
    empty = sentence_of(group("all", 0, {Dimension.NO_ANSWER: 0}))

    assert empty == "Nothing was measured."


def test_a_share_is_never_rounded_up_to_all() -> None:
    assert [tell_share(share) for share in (1.0, 0.99999, 0.942, 0.57, 0.0)] == [
        "100 %",
        "99.9 %",
        "94.2 %",
        "57 %",
        "0 %",
    ]


def test_numbers_have_three_digits_or_their_units() -> None:
    assert [tell_number(number) for number in (0.01234, 7.5, 123.4, 12345.6)] == [
        "0.0123",
        "7.5",
        "123",
        "12346",
    ]
    assert tell_rate(8.0) == "8/s"


def test_a_capacity_says_how_it_was_found_or_why_not() -> None:
    found = MaxRate(7.5, 0.9, (), "attains 94 % at 7/s and 86 % at 8/s")
    unknown = MaxRate(None, 0.9, (), "attains 93 % at 8/s, the highest rate offered: offer more")

    assert compose_capacity(found) == (
        "Max rate 7.5/s at 90 % attainment: it attains 94 % at 7/s and 86 % at 8/s."
    )
    assert compose_capacity(unknown).startswith("No max rate at 90 % attainment: it attains 93 %")
