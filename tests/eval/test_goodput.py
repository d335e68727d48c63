from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.eval.goodput import judge, measure_arrival_cv, summarise, summarise_probes
from bana.eval.requests import (
    Ending,
    Limits,
    LoadRun,
    Observed,
    Phase,
    Probe,
    ServerSample,
    Validity,
)
from bana.eval.runs import RunAbout
from bana.eval.summary import Dimension, Summary

ABOUT = RunAbout("http://127.0.0.1:1", 3, "abc", {"rate_rps": 2.0}, 0.0)
LIMITS = Limits(ttft_s=1.0, tpot_s=0.2)


def answer(due_s: float, ttft_s: float, **changes: Any) -> Observed:
    """Five tokens, 0.1 s apart, the first `ttft_s` after the schedule."""
    times_s = tuple(due_s + ttft_s + 0.1 * i for i in range(5))
    whole = Observed(
        index=int(due_s * 1000),
        due_s=due_s,
        ending=Ending.FINISHED,
        slo_class="default",
        limits=LIMITS,
        phase=Phase.WINDOW,
        prompt_tokens=10,
        asked_tokens=5,
        sent_s=due_s,
        first_s=times_s[0],
        last_s=times_s[-1],
        end_s=times_s[-1],
        output_tokens=5,
        event_times_s=times_s,
        event_tokens=(1,) * 5,
    )
    return msgspec.structs.replace(whole, **changes)


def refusal(due_s: float, ending: Ending = Ending.REJECTED) -> Observed:
    return answer(
        due_s,
        0.01,
        ending=ending,
        first_s=None,
        last_s=None,
        output_tokens=0,
        event_times_s=(),
        event_tokens=(),
    )


def run_of(*observed: Observed, window_s: float = 10.0, **changes: Any) -> LoadRun:
    run = LoadRun(observed, (), (), window_s, window_s + 5, Validity(True))
    return msgspec.structs.replace(run, **changes)


def summary_of(*observed: Observed, **changes: Any) -> Summary:
    return summarise(run_of(*observed, **changes), ABOUT)


def numbers_in(value: object) -> Iterator[float]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from numbers_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from numbers_in(item)
    elif isinstance(value, int | float):
        yield float(value)


@st.composite
def observations(draw: st.DrawFn) -> Observed:
    tokens = draw(st.integers(0, 4))
    due_s, sent_after_s = draw(st.floats(0, 9.99)), draw(st.floats(0, 3))
    waits_s = sorted(draw(st.lists(st.floats(0, 3), min_size=tokens, max_size=tokens)))
    times_s = tuple(due_s + sent_after_s + wait_s for wait_s in waits_s)
    return Observed(
        index=draw(st.integers(0, 99)),
        due_s=due_s,
        ending=draw(st.sampled_from(Ending)),
        slo_class=draw(st.sampled_from(["chat", "batch"])),
        limits=draw(st.sampled_from([Limits(), LIMITS, Limits(0.5, 0.1, 2.0)])),
        phase=draw(st.sampled_from(Phase)),
        prompt_tokens=draw(st.integers(0, 50)),
        asked_tokens=draw(st.integers(0, 4)),
        sent_s=due_s + sent_after_s,
        first_s=times_s[0] if times_s else None,
        last_s=times_s[-1] if times_s else None,
        end_s=due_s + sent_after_s + 3,
        output_tokens=tokens,
        event_times_s=times_s,
        event_tokens=(1,) * tokens,
        cached_tokens=draw(st.none() | st.integers(0, 50)),
    )


runs = st.lists(observations(), max_size=30)


@given(runs)
@settings(max_examples=50, deadline=None)
def test_a_summary_agrees_with_a_naive_computation(observed: list[Observed]) -> None:
    summary = summary_of(*observed)
    offered = met = prompt_tokens = output_tokens = 0
    ttfts_s, lateness_s, missed = [], [], dict.fromkeys(Dimension, 0)
    for o in observed:
        output_tokens += sum(1 for at_s in o.event_times_s if 0 <= at_s < 10)
        if o.phase is not Phase.WINDOW:
            continue
        offered += 1
        prompt_tokens += o.prompt_tokens
        lateness_s.append(o.sent_s - o.due_s)
        if o.first_s is not None:
            ttfts_s.append(o.first_s - o.due_s)
        if not judge(o):
            met += 1
        for dimension in judge(o):
            missed[dimension] += 1

    overall = summary.overall
    assert (overall.offered, overall.met) == (offered, met)
    assert overall.attainment.value == (met / offered if offered else 0.0)
    assert overall.goodput_rps.value == met / 10
    assert summary.offered_rps == offered / 10
    assert summary.input_tokens_per_s == prompt_tokens / 10
    assert summary.output_tokens_per_s == output_tokens / 10
    assert {d: overall.missed.get(d, 0) for d in Dimension} == missed
    assert (overall.latencies.ttft_s is None) == (not ttfts_s)
    if overall.latencies.ttft_s is not None:
        assert overall.latencies.ttft_s.mean == pytest.approx(sum(ttfts_s) / len(ttfts_s))
    if summary.lateness_s is not None:
        assert summary.lateness_s.largest == max(lateness_s)


@given(runs, st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_the_order_of_requests_changes_nothing(
    observed: list[Observed], shuffler: random.Random
) -> None:
    unique = [msgspec.structs.replace(o, index=i) for i, o in enumerate(observed)]

    assert summary_of(*shuffler.sample(unique, len(unique))) == summary_of(*unique)


@given(runs)
@settings(max_examples=25, deadline=None)
def test_a_summary_survives_being_written_and_holds_only_numbers(
    observed: list[Observed],
) -> None:
    summary = summary_of(*observed)

    assert msgspec.json.decode(msgspec.json.encode(summary), type=Summary) == summary
    assert all(math.isfinite(number) for number in numbers_in(msgspec.to_builtins(summary)))


@given(runs, st.floats(0, 1))
@settings(max_examples=25, deadline=None)
def test_tightening_a_limit_never_raises_attainment(
    observed: list[Observed], limit_s: float
) -> None:
    def tighten(o: Observed) -> Observed:
        set_s = math.inf if o.limits.ttft_s is None else o.limits.ttft_s
        tight = msgspec.structs.replace(o.limits, ttft_s=min(limit_s, set_s))
        return msgspec.structs.replace(o, limits=tight)

    before, after = summary_of(*observed), summary_of(*map(tighten, observed))

    assert after.overall.attainment.value <= before.overall.attainment.value
    assert after.overall.goodput_rps.value <= before.overall.goodput_rps.value


def test_a_late_server_is_judged_late() -> None:
    on_time = summary_of(*(answer(i / 10, 0.9) for i in range(100)))
    late = summary_of(*(answer(i / 10, 1.1) for i in range(100)))

    assert (on_time.overall.attainment.value, on_time.overall.goodput_rps.value) == (1.0, 10.0)
    assert (late.overall.attainment.value, late.overall.goodput_rps.value) == (0.0, 0.0)
    assert late.overall.missed == {
        Dimension.TTFT: 100,
        Dimension.TPOT: 0,
        Dimension.NO_ANSWER: 0,
    }


def test_a_client_that_waits_for_its_server_hides_nothing() -> None:
    # Ten requests/s are due; the server answers one a second; the client sends one at a time.
    free_s, observed = 0.0, []
    for i in range(50):
        sent_s = max(free_s, i / 10)
        free_s = sent_s + 1.0
        observed.append(answer(i / 10, sent_s + 0.5 - i / 10, sent_s=sent_s, end_s=free_s))
    overall = summary_of(*observed, window_s=5.0).overall
    ttft_s, from_send_s = overall.latencies.ttft_s, overall.latencies.ttft_from_send_s

    assert ttft_s is not None
    assert from_send_s is not None
    assert from_send_s.p99 == pytest.approx(0.5)
    assert ttft_s.p99 > 40
    assert (overall.met, overall.offered) == (1, 50)


@pytest.mark.parametrize("ending", [Ending.REJECTED, Ending.FAILED, Ending.CUT, Ending.UNFINISHED])
def test_what_was_not_answered_stays_in_the_denominator(ending: Ending) -> None:
    overall = summary_of(answer(0.0, 0.5), refusal(1.0, ending), refusal(2.0, ending)).overall

    assert (overall.offered, overall.met) == (3, 1)
    assert overall.attainment.value == 1 / 3
    assert overall.endings[ending] == 2
    assert overall.missed[Dimension.NO_ANSWER] == 2


def test_a_planned_departure_is_offered_met_and_shown() -> None:
    left = answer(1.0, 0.5, ending=Ending.CANCELLED, output_tokens=2, last_s=1.6, end_s=1.65)
    overall = summary_of(answer(0.0, 0.5), left).overall

    assert (overall.offered, overall.met) == (2, 2)
    assert overall.endings[Ending.CANCELLED] == 1


def test_a_run_in_which_all_failed_has_no_latencies() -> None:
    summary = summary_of(*(refusal(float(i)) for i in range(9)))

    assert (summary.overall.met, summary.overall.attainment.value) == (0, 0.0)
    assert summary.overall.latencies.ttft_s is None
    assert summary.output_tokens_per_s == 0
    assert summary.jain_index is None


def test_a_run_without_requests_is_not_valid() -> None:
    summary = summary_of(answer(1.0, 0.5, phase=Phase.WARMUP))

    assert summary.overall.offered == 0
    assert not summary.validity.is_valid
    assert "no request" in summary.validity.reasons[0]
    assert summary.classes == summary.quartiles == ()


def test_one_token_answers_have_no_tpot() -> None:
    short = answer(1.0, 0.5, output_tokens=1, event_times_s=(1.5,), event_tokens=(1,))
    overall = summary_of(msgspec.structs.replace(short, last_s=1.5)).overall

    assert overall.latencies.tpot_s is None
    assert overall.met == 1


def test_huge_times_stay_finite() -> None:
    summary = summary_of(answer(0.0, 1e300), answer(1.0, 1.7e308), answer(2.0, 1.7e308))
    ttft_s = summary.overall.latencies.ttft_s

    assert summary.overall.missed[Dimension.TTFT] == 3
    assert ttft_s is not None
    assert math.isfinite(ttft_s.mean)
    assert all(math.isfinite(number) for number in numbers_in(msgspec.to_builtins(summary)))


def test_warm_up_and_cool_down_only_lend_their_tokens() -> None:
    spilling = answer(-0.15, 0.01, phase=Phase.WARMUP)
    after = answer(10.0, 0.5, phase=Phase.COOLDOWN)
    summary = summary_of(spilling, answer(9.76, 0.05), after)

    assert summary.overall.offered == 1
    # Three of the first and two of the second came between 0 and 10 s.
    assert summary.output_tokens_per_s == pytest.approx(0.5)


def test_classes_and_quartiles_stand_beside_the_whole() -> None:
    quick = [answer(i / 10, 0.5, slo_class="batch", prompt_tokens=i) for i in range(40)]
    late = [answer(i / 10, 2.0, slo_class="chat", prompt_tokens=99) for i in range(10)]
    summary = summary_of(*quick, *late)

    assert [(g.name, g.met, g.offered) for g in summary.classes] == [
        ("batch", 40, 40),
        ("chat", 0, 10),
    ]
    assert summary.worst_class == "chat"
    assert summary.jain_index == 0.5
    assert summary.quartiles[-1].attainment.value < summary.quartiles[0].attainment.value == 1.0


def test_one_class_is_measured_by_its_quartiles() -> None:
    late = [answer(i / 10, 0.5 if i < 20 else 2.0, prompt_tokens=i) for i in range(40)]
    summary = summary_of(*late)

    assert summary.worst_class is None
    assert summary.jain_index == 0.5


def test_probes_of_the_window_show_the_head_of_line_wait() -> None:
    probes = (
        Probe(-1.0, -1.0, 50.0, Ending.FINISHED),
        Probe(1.0, 1.1, 1.5, Ending.FINISHED),
        Probe(2.0, 2.0, None, Ending.FAILED, "refused"),
        Probe(3.0, None, None, Ending.UNFINISHED),
    )
    summary = summary_of(answer(0.0, 0.5), probes=probes)

    assert summary.probes_failed == 2
    assert summary.probe_ttft_s is not None
    assert (summary.probe_ttft_s.count, summary.probe_ttft_s.largest) == (1, 0.5)
    assert summarise_probes([]).ttft_s is None


def test_what_the_server_tells_is_shown() -> None:
    told = [answer(0.0, 0.5, cached_tokens=5), answer(1.0, 0.5, cached_tokens=0)]
    sample = ServerSample(1.0, {"a": 3.0, "b": 1.0}, {"a": 0.0, "b": 0.0})
    summary = summary_of(*told, answer(2.0, 0.5), samples=(sample,))

    assert summary.cached_share == 0.25
    assert summary.balance is not None
    assert summary.balance.max_over_mean == 1.5
    assert summary_of(answer(0.0, 0.5)).cached_share is None


@pytest.mark.parametrize(
    ("due_s", "cv"),
    [
        ([0.0, 1.0, 2.0, 3.0], 0.0),
        ([3.0, 0.0, 1.0], pytest.approx(1 / 3)),
        ([0.0, 1.0], None),
        ([1.0, 1.0, 1.0], None),
        ([], None),
    ],
)
def test_arrival_cv_is_that_of_the_gaps(due_s: list[float], cv: float | None) -> None:
    assert measure_arrival_cv(due_s) == cv


def test_a_run_that_proves_nothing_keeps_its_figures() -> None:
    late = summary_of(answer(0.0, 0.5), validity=Validity(False, ("lateness p99 80 ms",)))
    cut = summary_of(answer(0.0, 0.5), is_interrupted=True)

    assert late.overall.met == cut.overall.met == 1
    assert late.sentence.startswith("This run proves nothing: lateness p99 80 ms.")
    assert cut.sentence.startswith("This run proves nothing: it was interrupted")
