from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from bana.eval.comparing import (
    ComparedRuns,
    Undecided,
    compare_runs,
    compose_comparison,
    decide_verdict,
    pair_runs,
)
from bana.eval.goodput import summarise
from bana.eval.metrics import METRICS
from bana.eval.requests import Ending, Limits, LoadRun, Observed, Phase, Validity
from bana.eval.runs import RunAbout, RunRecord
from bana.eval.summary import Comparison, Spread, Verdict
from bana.slo.errors import ConfigError
from bana.slo.figures import Better

WINDOW_S = 100.0
TOKENS = 5


def about(seed: int, **changes: Any) -> RunAbout:
    plain = RunAbout("t", seed, f"print-{seed}", {"rate_rps": 4.0, "source": "synthetic"}, 0.0)
    return msgspec.structs.replace(plain, **changes)


def serve(seed: int, noise: int, slowness: float = 1.0) -> RunRecord:
    """One server with one queue, loaded to 70 %: arrivals from `seed`, its own noise."""
    arrivals, service = np.random.default_rng(seed), np.random.default_rng([seed, noise])
    due_s, free_s, observed = 0.0, 0.0, []
    while (due_s := due_s + arrivals.exponential(0.25)) < WINDOW_S:
        start_s, took_s = max(due_s, free_s), slowness * service.gamma(4.0, 0.175 / 4)
        free_s = start_s + took_s
        observed.append(answer(len(observed), due_s, start_s + took_s / 2, free_s))
    return RunRecord(about(seed), run_of(observed))


def answer(index: int, due_s: float, first_s: float, last_s: float) -> Observed:
    times_s = tuple(float(t) for t in np.linspace(first_s, last_s, TOKENS))
    return Observed(
        index=index,
        due_s=due_s,
        ending=Ending.FINISHED,
        slo_class="default",
        limits=Limits(ttft_s=0.4),
        phase=Phase.WINDOW,
        prompt_tokens=10,
        asked_tokens=TOKENS,
        sent_s=due_s,
        first_s=times_s[0],
        last_s=times_s[-1],
        end_s=times_s[-1],
        output_tokens=TOKENS,
        event_times_s=times_s,
        event_tokens=(1,) * TOKENS,
    )


def run_of(observed: list[Observed]) -> LoadRun:
    return LoadRun(tuple(observed), (), (), WINDOW_S, WINDOW_S + 5, Validity(True))


def steady(ttft_s: float, seed: int = 1, tokens_s: float = 0.5) -> RunRecord:
    """A request each second, all alike."""
    times_s = [i + 0.5 for i in range(int(WINDOW_S))]
    answers = [
        answer(i, at_s, at_s + ttft_s, at_s + ttft_s + tokens_s) for i, at_s in enumerate(times_s)
    ]
    return RunRecord(about(seed), run_of(answers))


def refused(seed: int = 1) -> RunRecord:
    record = steady(0.2, seed)
    gone = [
        msgspec.structs.replace(
            o,
            ending=Ending.REJECTED,
            first_s=None,
            last_s=None,
            output_tokens=0,
            event_times_s=(),
            event_tokens=(),
        )
        for o in record.run.observed
    ]
    return RunRecord(record.about, run_of(gone))


def by_metric(compared: ComparedRuns) -> dict[str, Comparison]:
    return {c.metric: c for c in compared.comparisons}


def test_equal_servers_show_no_difference_and_a_slower_one_does() -> None:
    wrong = dict.fromkeys((m.name for m in METRICS), 0)
    found = 0
    for seed in range(30):
        base = serve(seed, noise=1)
        equal = compare_runs([base], [serve(seed, noise=2)])
        slower = compare_runs([base], [serve(seed, noise=3, slowness=1.2)])
        for comparison in equal.comparisons:
            wrong[comparison.metric] += comparison.verdict is not Verdict.NO_DIFFERENCE
        found += by_metric(slower)["ttft_mean_s"].verdict is Verdict.WORSE

    assert {name: count for name, count in wrong.items() if count > 5} == {}
    assert sum(wrong.values()) <= 0.1 * 30 * len(METRICS)
    assert found >= 27


def test_several_pairs_show_no_difference_and_find_a_slower_server() -> None:
    wrong = found = 0
    for first in range(0, 24, 3):
        seeds = range(first, first + 3)
        base = [serve(seed, noise=1) for seed in seeds]
        equal = compare_runs(base, [serve(seed, noise=2) for seed in seeds])
        slower = compare_runs(base, [serve(seed, noise=3, slowness=1.2) for seed in seeds])
        wrong += sum(c.verdict is not Verdict.NO_DIFFERENCE for c in equal.comparisons)
        found += by_metric(slower)["ttft_mean_s"].verdict is Verdict.WORSE

    assert wrong <= 0.1 * 8 * len(METRICS)
    assert found >= 7


def test_ratios_are_those_of_the_summaries() -> None:
    a, b = serve(3, noise=1), serve(3, noise=2, slowness=1.2)
    told_a, told_b = summarise(a.run, a.about), summarise(b.run, b.about)
    ratios = {name: c.ratio.value for name, c in by_metric(compare_runs([a], [b])).items()}

    latencies_a, latencies_b = told_a.overall.latencies, told_b.overall.latencies
    assert latencies_a.ttft_s is not None
    assert latencies_b.ttft_s is not None
    assert latencies_a.tpot_s is not None
    assert latencies_b.tpot_s is not None
    assert ratios == pytest.approx(
        {
            "ttft_mean_s": latencies_b.ttft_s.mean / latencies_a.ttft_s.mean,
            "ttft_p99_s": latencies_b.ttft_s.p99 / latencies_a.ttft_s.p99,
            "tpot_mean_s": latencies_b.tpot_s.mean / latencies_a.tpot_s.mean,
            "attainment": told_b.overall.attainment.value / told_a.overall.attainment.value,
            "goodput_rps": told_b.overall.goodput_rps.value / told_a.overall.goodput_rps.value,
            "output_tokens_per_s": told_b.output_tokens_per_s / told_a.output_tokens_per_s,
        }
    )


def test_a_run_does_not_differ_from_itself() -> None:
    compared = compare_runs([serve(1, noise=1)], [serve(1, noise=1)])

    assert compared.pairs == 1
    assert {c.ratio for c in compared.comparisons} == {Spread(1.0, 1.0, 1.0)}
    assert {c.verdict for c in compared.comparisons} == {Verdict.NO_DIFFERENCE}


def test_verdicts_speak_of_b_and_know_which_way_is_better() -> None:
    faster = by_metric(compare_runs([steady(0.6)], [steady(0.3)]))

    assert faster["ttft_mean_s"].verdict is Verdict.BETTER
    assert faster["ttft_mean_s"].ratio.value == pytest.approx(0.5)
    assert by_metric(compare_runs([steady(0.3)], [steady(0.6)]))["attainment"].verdict is (
        Verdict.WORSE
    )


@pytest.mark.parametrize(
    ("ratio", "better", "verdict"),
    [
        (Spread(1.2, 1.1, 1.3), Better.HIGHER, Verdict.BETTER),
        (Spread(1.2, 1.1, 1.3), Better.LOWER, Verdict.WORSE),
        (Spread(0.8, 0.7, 0.9), Better.HIGHER, Verdict.WORSE),
        (Spread(0.8, 0.7, 0.9), Better.LOWER, Verdict.BETTER),
        (Spread(1.2, 1.0, 1.3), Better.HIGHER, Verdict.NO_DIFFERENCE),
    ],
)
def test_a_verdict_needs_an_interval_without_one(
    ratio: Spread, better: Better, verdict: Verdict
) -> None:
    assert decide_verdict(ratio, better) is verdict


def test_several_pairs_give_their_median_ratio() -> None:
    pairs = [(0.2, 0.1), (0.2, 0.2), (0.2, 0.3)]
    a = [steady(x, seed) for seed, (x, _) in enumerate(pairs)]
    b = [steady(y, seed) for seed, (_, y) in enumerate(pairs)]
    compared = compare_runs(a, list(reversed(b)))
    ttft = by_metric(compared)["ttft_mean_s"]

    assert (compared.pairs, ttft.pairs) == (3, 3)
    assert (ttft.ratio.low, ttft.ratio.value, ttft.ratio.high) == pytest.approx((0.5, 1.0, 1.5))
    assert ttft.verdict is Verdict.NO_DIFFERENCE


def test_nothing_to_divide_by_is_said_in_words() -> None:
    compared = compare_runs([refused()], [steady(0.2)])

    assert Undecided("goodput_rps", "A has 0, B 1") in compared.undecided
    assert Undecided("ttft_mean_s", "A has no value, B 0.2") in compared.undecided
    assert compared.comparisons == ()
    assert "A left 100 requests without a token, B 0" in compared.notes[0]


def test_a_value_too_rare_to_be_drawn_again_has_no_ratio() -> None:
    def only_first(record: RunRecord) -> RunRecord:
        answered = [record.run.observed[0], *refused().run.observed[1:]]
        return RunRecord(record.about, run_of(answered))

    compared = compare_runs([only_first(steady(0.2))], [only_first(steady(0.3))])

    assert {u.metric for u in compared.undecided} == {m.name for m in METRICS}
    assert "too few" in compared.undecided[0].reason


def test_no_number_of_a_comparison_is_infinite() -> None:
    compared = compare_runs([steady(0.2)], [refused()])
    spreads = [c.ratio for c in compared.comparisons]

    assert by_metric(compared)["goodput_rps"].ratio == Spread(0.0, 0.0, 0.0)
    assert all(math.isfinite(x) for s in spreads for x in (s.value, s.low, s.high))
    assert msgspec.json.decode(msgspec.json.encode(compared), type=ComparedRuns) == compared


def test_different_workloads_are_refused_with_what_differs() -> None:
    a = steady(0.2)
    other = about(1, fingerprint="print-x", workload={"rate_rps": 5.0, "source": "synthetic"})

    with pytest.raises(ConfigError) as refusal:
        compare_runs([a], [RunRecord(other, a.run)])

    said = str(refusal.value)
    assert all(part in said for part in ("print-1", "print-x", "rate_rps 4.0 and 5.0"))
    assert "source" not in said


def test_workloads_that_differ_in_no_fact_say_so() -> None:
    a = steady(0.2)

    with pytest.raises(ConfigError, match="no fact, only the requests"):
        compare_runs([a], [RunRecord(about(1, fingerprint="print-x"), a.run)])


def test_different_seeds_are_refused() -> None:
    with pytest.raises(ConfigError, match="seed 1 and seed 2"):
        compare_runs([steady(0.2, seed=1)], [steady(0.2, seed=2)])
    with pytest.raises(ConfigError, match="seed 1 and seed 1, 2"):
        compare_runs([steady(0.2)], [steady(0.2, seed=2), steady(0.2)])
    with pytest.raises(ConfigError, match="give both sides a run"):
        compare_runs([], [steady(0.2)])


def test_runs_whose_limits_differ_are_refused() -> None:
    a = steady(0.2)
    eased = [msgspec.structs.replace(o, limits=Limits()) for o in a.run.observed]

    with pytest.raises(ConfigError, match="limits differ"):
        compare_runs([a], [RunRecord(a.about, run_of(eased))])


@pytest.mark.parametrize(
    "changes", [{"is_interrupted": True}, {"validity": Validity(False, ("lateness",))}]
)
def test_a_run_that_proves_nothing_is_not_compared(changes: dict[str, Any]) -> None:
    a = steady(0.2)

    with pytest.raises(ConfigError, match="proves nothing"):
        compare_runs([a], [RunRecord(a.about, msgspec.structs.replace(a.run, **changes))])


def test_repeated_seeds_are_paired_in_their_order() -> None:
    first, second, third = steady(0.1), steady(0.2), steady(0.3, seed=0)
    pairs = pair_runs([first, second, third], [third, second, first])

    assert [(p.a, p.b) for p in pairs] == [(third, third), (first, second), (second, first)]


def test_a_comparison_ends_in_a_sentence() -> None:
    compared = compare_runs([steady(0.6)], [steady(0.3)])
    sentence = compose_comparison(compared)

    assert sentence.startswith("B over A (1 pair): better in ttft_mean_s 0.5x (0.5-0.5)")
    assert "no difference shown in tpot_mean_s 1x" in sentence
    assert "no ratio of attainment: A has 0, B 1" in sentence
