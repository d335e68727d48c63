"""A side of the benchmark in simulation: the same policies, engine, step times and requests.

due ─ door ─▶ queue ─ steps, each with its overhead ─▶ token      door and overhead: what the idle
└───────────── TTFT as clients see it ────────────────┘           side takes beyond its steps
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from bana.eval.bench.agreement.engine_facts import build_engine
from bana.eval.bench.slo.points import PointSeen, list_values, read_point
from bana.eval.bench.slo.settings import BUDGET
from bana.eval.bench.trials import Values
from bana.eval.client.isolated import OUTPUT_TOKENS, Isolated, summarise_isolated
from bana.eval.goodput import summarise
from bana.eval.requests import Ending, LoadRun, Observed, Offered, Prompt, Workload
from bana.eval.runs import tell_about
from bana.eval.simulator.engine_spec import EngineSpec, Overtaking
from bana.eval.simulator.policies import build_policies
from bana.eval.simulator.prefixes import plan_nothing, plan_prefixes
from bana.eval.simulator.service import DelayedTimes
from bana.eval.simulator.simulate import Setup, simulate
from bana.eval.simulator.spec import PolicySpec
from bana.slo.decisions import PolicyChoice
from bana.slo.steps import StepModel

# Longer than any single request takes.
APART_S = 3600.0
# BUDGET_POLICIES as the simulator names them.
BUDGET_SPEC = PolicySpec(order=PolicyChoice("budget"), governor=PolicyChoice("tpot"))


class Gaps(msgspec.Struct, frozen=True):
    """What a step takes beyond its model, and an answer beyond its steps."""

    overhead_s: float = 0.0
    door_s: float = 0.0


class Twin(msgspec.Struct, frozen=True):
    """The simulated side. Policies believe `model`, which leaves out the gaps, as the engine's."""

    engine: EngineSpec
    policies: PolicySpec
    model: StepModel
    gaps: Gaps = Gaps()

    def at_pace(self, pace: float) -> Twin:
        """The same on a machine that takes `pace` times as long for everything."""
        model = StepModel(*(pace * value for value in msgspec.structs.astuple(self.model)))
        gaps = Gaps(*(pace * value for value in msgspec.structs.astuple(self.gaps)))
        return msgspec.structs.replace(self, model=model, gaps=gaps)

    def serve(self, workload: Workload, drain_s: float) -> LoadRun:
        """What the clients of `workload` see, who wait for `drain_s` after the last request."""
        plan = plan_prefixes if self.engine.has_prefix_cache else plan_nothing
        setup = Setup(
            engine=self.engine,
            policies=build_policies(self.policies),
            times=DelayedTimes(self.model, self.gaps.overhead_s),
            model=self.model,
            drain_s=drain_s,
        )
        run = simulate(workload, plan(workload.requests, self.engine.page_tokens), setup).load
        observed = tuple(_delay(seen, self.gaps.door_s) for seen in run.observed)
        return msgspec.structs.replace(run, observed=observed)

    def take_point(self, workload: Workload, drain_s: float) -> PointSeen:
        """The same numbers as of a live point; `workload` has its promises."""
        run = self.serve(workload, drain_s)
        return read_point(list_values(summarise(run, tell_about(workload, "simulated"))))

    def measure_isolated(self, live: Isolated) -> Isolated:
        """What single requests take that are like those of `live`."""
        lengths = [point.prompt_tokens for point in live.points]
        return summarise_isolated(self.serve(_offer_apart(lengths), APART_S).observed)


def make_twin(side: str, facts: Values, model: StepModel) -> Twin:
    """The twin of the budget side, or of SGLang with a stock order, before its gaps are known."""
    if side == BUDGET:
        return Twin(build_engine(facts, Overtaking.BETWEEN_CHUNKS), BUDGET_SPEC, model)
    stock = PolicySpec(order=PolicyChoice(side), governor=PolicyChoice("prefill_first"))
    return Twin(build_engine(facts, Overtaking.NEVER), stock, model)


def fit_gaps(twin: Twin, live: Isolated) -> Gaps:
    """What `twin` lacks beside a side that answered single requests so fast; never negative.

    The overhead is what TPOT shows; the door what TTFT shows beyond it, in the median of lengths.
    """
    bare = twin.measure_isolated(live)
    overhead_s = 0.0
    if live.tpot_s is not None and bare.tpot_s is not None:
        overhead_s = max(0.0, live.tpot_s - bare.tpot_s)
    slowed = msgspec.structs.replace(twin, gaps=Gaps(overhead_s)).measure_isolated(live)
    pairs = zip(live.points, slowed.points, strict=True)
    door_s = statistics.median(seen.ttft_s - simulated.ttft_s for seen, simulated in pairs)
    return Gaps(overhead_s, max(0.0, door_s))


def _offer_apart(lengths: Sequence[int]) -> Workload:
    """Single prompts of these lengths that share nothing, one long after the other."""
    requests = tuple(
        Offered(
            index=index,
            due_s=index * APART_S,
            prompt=Prompt(token_ids=[index] * tokens),
            prompt_tokens=tokens,
            output_tokens=OUTPUT_TOKENS,
        )
        for index, tokens in enumerate(lengths)
    )
    return Workload(requests, len(lengths) * APART_S, seed=0, fingerprint="", facts={})


def _delay(seen: Observed, door_s: float) -> Observed:
    """The same answer, all of it seen later."""
    if seen.first_s is None or seen.last_s is None:
        return seen
    end_s = seen.end_s
    if end_s is not None and seen.ending is Ending.FINISHED:
        end_s += door_s
    return msgspec.structs.replace(
        seen,
        first_s=seen.first_s + door_s,
        last_s=seen.last_s + door_s,
        end_s=end_s,
        event_times_s=tuple(at_s + door_s for at_s in seen.event_times_s),
    )
