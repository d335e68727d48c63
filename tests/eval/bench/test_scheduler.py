from __future__ import annotations

import msgspec

from bana.eval.bench.harness import Scale
from bana.eval.bench.overhead import TakenPairs
from bana.eval.bench.pairs import Pair
from bana.eval.bench.samples import join_samples, pair_samples
from bana.eval.bench.scheduler import (
    SCALES,
    CaseSamples,
    describe_scheduler_settings,
    judge_passes,
    judge_throughput_alone,
)

SAMPLES = {
    "budget": CaseSamples([3.0, 5.0, 4.0], [1.0, 1.0, 1.5]),
    "budget, late": CaseSamples([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]),
}


def tokens(ours: float, theirs: float) -> Pair:
    return Pair({"tokens_per_s": ours}, {"tokens_per_s": theirs})


def test_samples_survive_an_interruption() -> None:
    cases = pair_samples(join_samples(SAMPLES), CaseSamples, "pass_ms")
    assert list(cases) == list(SAMPLES)
    seen = [(pair.first["pass_ms"], pair.second["pass_ms"]) for pair in cases["budget"]]
    assert seen == [(3.0, 1.0), (5.0, 1.0), (4.0, 1.5)]


def test_what_is_added_is_judged_by_the_upper_bound() -> None:
    figures = judge_passes(join_samples(SAMPLES), seed=0)
    added = figures["scheduler_pass_10k_ms[budget]"]
    assert (added.value, added.aim, added.met) == (2.5, "<= 2", False)
    assert figures["scheduler_pass_10k_ms[budget, late]"].met is True
    assert figures["stock_pass_10k_ms[budget]"].value == 1.0


def test_throughput_is_judged_by_its_median() -> None:
    pairs = [tokens(0.99, 1.0), tokens(0.9, 1.0), tokens(1.0, 1.0)]
    figures = judge_throughput_alone(TakenPairs(pairs, [], []), seed=0)
    assert (figures["throughput_vs_stock"].value, figures["throughput_vs_stock"].met) == (
        0.99,
        True,
    )
    assert "control_stock_vs_stock" not in figures


def test_policies_are_on_and_nobody_is_pressed() -> None:
    for scale in (Scale.DEFAULT, Scale.FULL):
        settings = SCALES[scale]
        assert settings.requests == 10_000
        assert settings.throughput.starts * settings.throughput.pairs >= 5
        policies = settings.throughput.policies
        assert {"scheduling.order=budget", "scheduling.governor=tpot"} <= set(policies)
        assert "slo.default_class=batch" in policies
    described = describe_scheduler_settings(Scale.DEFAULT)
    assert msgspec.json.encode(described)
