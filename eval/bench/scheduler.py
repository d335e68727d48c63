"""What scheduling by latency budgets costs: a pass over a long queue, and saturated tokens/s.

pass        bana's conductor and SGLang's own order in one process, in turn, on the same queue
throughput  rounds of the overhead benchmark, with the policies on and promises nobody misses
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bana.eval.bench.apart import run_apart
from bana.eval.bench.harness import Bench, Scale, Session
from bana.eval.bench.overhead import MEDIAN_AIM, TakenPairs, take_pairs
from bana.eval.bench.overhead_settings import OverheadSettings
from bana.eval.bench.pairs import figure_difference, figure_level, figure_ratio
from bana.eval.bench.placement import plan_engine_placement
from bana.eval.bench.samples import join_samples, pair_samples
from bana.eval.bench.slo.settings import BUDGET_POLICIES
from bana.eval.bench.trials import Values
from bana.slo.figures import Aim, Better, Figure

MODULE = "sglang_bana.engine.bench_scheduler"
PASS_AIM = Aim(2.0, Better.LOWER)
# The widest class: what is measured is the cost of deciding, not what a tight promise takes.
NO_PRESSURE = (*BUDGET_POLICIES, "slo.default_class=batch")
METRIC = "pass_ms"


class SchedulerSettings(msgspec.Struct, frozen=True):
    """One scale: `requests` wait while `pairs` of passes are timed in every case of MODULE."""

    requests: int
    pairs: int
    throughput: OverheadSettings


SCALES = {
    Scale.QUICK: SchedulerSettings(
        requests=1_000,
        pairs=5,
        throughput=OverheadSettings(
            starts=1,
            pairs=1,
            control_pairs=0,
            shared_pairs=0,
            requests=4,
            concurrency=4,
            output_tokens=8,
            policies=NO_PRESSURE,
        ),
    ),
    Scale.DEFAULT: SchedulerSettings(
        requests=10_000,
        pairs=25,
        throughput=OverheadSettings(
            starts=6, pairs=2, control_pairs=1, shared_pairs=0, requests=16, policies=NO_PRESSURE
        ),
    ),
    Scale.FULL: SchedulerSettings(
        requests=10_000,
        pairs=101,
        throughput=OverheadSettings(
            starts=12, pairs=3, control_pairs=1, shared_pairs=0, requests=32, policies=NO_PRESSURE
        ),
    ),
}


class CaseSamples(msgspec.Struct, frozen=True):
    """What MODULE says of one case: milliseconds of each pass, pair by pair."""

    bana_ms: list[float]
    stock_ms: list[float]


def measure_scheduler(session: Session) -> Mapping[str, Figure]:
    """All figures of this benchmark."""
    settings = SCALES[session.request.scale]
    passes = session.run_trial("passes", lambda: _time_passes(session, settings))
    taken = take_pairs(session, settings.throughput)
    seed = session.request.seed
    return judge_passes(passes, seed) | judge_throughput_alone(taken, seed)


def _time_passes(session: Session, settings: SchedulerSettings) -> Values:
    arguments = ["--seed", str(session.request.seed), "--requests", str(settings.requests)]
    arguments += ["--pairs", str(settings.pairs)]
    output = run_apart(session, MODULE, arguments)
    return join_samples(msgspec.json.decode(output, type=dict[str, CaseSamples]))


def judge_passes(values: Values, seed: int) -> dict[str, Figure]:
    """What each case adds to SGLang's own pass, and how long that takes."""
    figures = {}
    for case, pairs in pair_samples(values, CaseSamples, METRIC).items():
        figures[f"scheduler_pass_10k_ms[{case}]"] = figure_difference(
            pairs, METRIC, seed, "ms", PASS_AIM
        )
        stock = [pair.second[METRIC] for pair in pairs]
        figures[f"stock_pass_10k_ms[{case}]"] = figure_level(stock, seed, "ms")
    return figures


def judge_throughput_alone(taken: TakenPairs, seed: int) -> dict[str, Figure]:
    """Saturated tokens/s, and how far two equal sides differ."""
    figures = {
        "throughput_vs_stock": figure_ratio(taken.neutral, "tokens_per_s", seed, MEDIAN_AIM),
    }
    if taken.control:
        control = figure_ratio(taken.control, "tokens_per_s", seed, None)
        figures["control_stock_vs_stock"] = control
    return figures


def describe_scheduler_settings(scale: Scale) -> Mapping[str, object]:
    """The settings as they stand in the report."""
    described: dict[str, object] = msgspec.to_builtins(SCALES[scale])
    return described | {
        "module": MODULE,
        "placement": plan_engine_placement().describe(),
        "pass": "inputs, plan and its effects on the queue, less SGLang's own fcfs order of the "
        "same queue; requests, cache and order are SGLang's, the rest of the scheduler stands in",
        "throughput": "bana's scheduler and policies through its front door, over SGLang's "
        "addressed directly, same platform and flags; promises of the class batch",
    }


SCHEDULER = Bench(
    help="latency budgets: added time of a pass over 10,000 waiting, saturated tokens/s",
    settings=describe_scheduler_settings,
    measure=measure_scheduler,
)
