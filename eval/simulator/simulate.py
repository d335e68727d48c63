"""One workload through one simulated instance: from offered requests to observed ones."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import msgspec

from bana.eval.requests import LoadRun, Offered, Validity, Workload
from bana.eval.simulator.deciding import Decider, DecisionSink, Policies
from bana.eval.simulator.engine_spec import EngineSpec
from bana.eval.simulator.instance import Instance, Visit
from bana.eval.simulator.jobs import Job
from bana.eval.simulator.kv import KvPool
from bana.eval.simulator.load import LoadMeter
from bana.eval.simulator.log import EventLog
from bana.eval.simulator.machine import Machine
from bana.eval.simulator.observing import ClientView, observe
from bana.eval.simulator.predicting import Belief, DoubtSpec, FixedBelief, Predictor, draw_doubt
from bana.eval.simulator.prefixes import PrefixPlan
from bana.eval.simulator.ratio import OutputRatio
from bana.eval.simulator.rematching import ChangedNodes, Rematcher
from bana.eval.simulator.running import RunningBatch
from bana.eval.simulator.service import StepTimes
from bana.eval.simulator.showing import Showing
from bana.eval.simulator.store.restoring import Restorer
from bana.eval.simulator.store.spec import StoreSpec
from bana.eval.simulator.store.store import Store
from bana.eval.simulator.waiting import WaitingTable
from bana.slo.budget import Budget
from bana.slo.clock import ManualClock
from bana.slo.errors import ConfigError
from bana.slo.estimate import StepEstimator
from bana.slo.fetching import ComputeView
from bana.slo.steps import EnginePrices, StepModel, StepShape, count_attended

# What a request counts as promised that was promised nothing: late in every order.
NO_LIMIT_S = 3600.0


class Setup(msgspec.Struct, frozen=True):
    """The instance that a workload meets. `times` are the truth, `model` is what is believed: None
    where the engine begins with nothing and learns from its steps. Its `store` is used where there
    is a restore policy.
    """

    engine: EngineSpec
    policies: Policies
    times: StepTimes
    model: StepModel | None
    doubt: DoubtSpec = DoubtSpec()
    seed: int = 0
    drain_s: float = 300.0
    store: StoreSpec | None = None


class SimRun(msgspec.Struct, frozen=True):
    """What clients saw, and the digest of everything that happened. With a store `sources` counts
    the prompt tokens of those that were begun by where they came from.
    """

    load: LoadRun
    event_hash: str
    events: int
    sources: Mapping[str, int] = {}


def simulate(
    workload: Workload,
    prefixes: PrefixPlan,
    setup: Setup,
    log: EventLog | None = None,
    sink: DecisionSink | None = None,
) -> SimRun:
    """Serve `workload`, whose prompts share what `prefixes` says; equal inputs, equal answers.

    ConfigError for a request that does not fit into the KV cache. PlanError where a policy answers
    outside its law.
    """
    log = log or EventLog()
    visits = _plan_visits(workload, prefixes, setup)
    until_s = max((r.due_s for r in workload.requests), default=0.0) + setup.drain_s
    machine = _build_machine(prefixes, setup, log, sink)
    clock = ManualClock()
    Instance(machine, setup.times, clock).run(visits, until_s)
    view = ClientView(machine.running.beats_s, machine.showing, until_s)
    seen = [
        observe(offered, visit.job, view)
        for offered, visit in zip(workload.requests, visits, strict=True)
    ]
    run = LoadRun(
        observed=tuple(seen),
        probes=(),
        samples=(),
        window_s=workload.window_s,
        duration_s=clock.now_s(),
        validity=Validity(True),
    )
    sources = {} if machine.restorer is None else machine.restorer.sources
    return SimRun(run, log.hash(), log.entries, sources)


def _build_machine(
    prefixes: PrefixPlan, setup: Setup, log: EventLog, sink: DecisionSink | None
) -> Machine:
    changed = ChangedNodes(prefixes)
    kv = KvPool(setup.engine.kv_pages, prefixes, changed.add)
    waiting = WaitingTable()
    belief = _begin_belief(setup)
    predictor = Predictor(belief, setup.engine.chunk_tokens)
    machine = Machine(
        spec=setup.engine,
        decider=Decider(setup.policies, setup.seed, sink),
        predictor=predictor,
        load=_open_meter(belief, setup.engine),
        log=log,
        kv=kv,
        waiting=waiting,
        running=RunningBatch(setup.engine.page_tokens),
        rematcher=Rematcher(kv, waiting, predictor, changed),
        ratio=OutputRatio(setup.engine.output_ratio),
        showing=Showing(setup.engine.tokens_seen),
    )
    if setup.policies.restore is not None:
        machine.restorer = _open_store(machine, prefixes, setup)
    return machine


def _open_store(machine: Machine, prefixes: PrefixPlan, setup: Setup) -> Restorer:
    spec = setup.store
    if spec is None:
        raise ConfigError("a restore policy needs a store to restore from; give the setup one")

    def find_compute() -> ComputeView:
        model, inflation = machine.predictor.belief.model, machine.load.load().inflation
        prices = EnginePrices(model, setup.engine.chunk_tokens, inflation)
        return ComputeView(prices, machine.count_delayed(), can_meet=True)

    return Restorer(
        Store(prefixes, spec, setup.seed, machine.rematcher.mark),
        ("arena", *spec.tiers),
        setup.engine.page_tokens,
        machine.decider.decide_restore,
        find_compute,
    )


def _begin_belief(setup: Setup) -> Belief:
    return StepEstimator() if setup.model is None else FixedBelief(setup.model, setup.doubt.bias)


def _open_meter(belief: Belief, engine: EngineSpec) -> LoadMeter:
    """A full instance: a full chunk, and as many decodes as there may be over all of the KV."""
    chunk = StepShape(engine.chunk_tokens, count_attended(engine.chunk_tokens, 0))
    full = StepShape(decode_requests=engine.max_running, context_tokens=engine.kv_tokens)
    return LoadMeter(belief, chunk, full)


def _plan_visits(workload: Workload, prefixes: PrefixPlan, setup: Setup) -> list[Visit]:
    rng = Random(setup.seed)
    visits = []
    for number, offered in enumerate(workload.requests):
        _check_size(offered, setup.engine)
        job = Job(number, _promise(offered), offered.prompt_tokens, offered.output_tokens)
        job.is_open_ended = not offered.ignore_eos
        job.path = prefixes.paths[number]
        job.doubt = draw_doubt(setup.doubt, rng)
        cancel_s = None
        if offered.cancel_after_s is not None:
            cancel_s = offered.due_s + offered.cancel_after_s
        visits.append(Visit(job, cancel_s))
    return visits


def _promise(offered: Offered) -> Budget:
    limits = offered.limits
    return Budget(
        slo_class=offered.slo_class,
        arrival_s=offered.due_s,
        ttft_s=NO_LIMIT_S if limits.ttft_s is None else limits.ttft_s,
        tpot_s=NO_LIMIT_S if limits.tpot_s is None else limits.tpot_s,
        e2e_s=limits.e2e_s,
    )


def _check_size(offered: Offered, engine: EngineSpec) -> None:
    needed = offered.prompt_tokens + offered.output_tokens + 2 * engine.page_tokens
    if needed > engine.kv_pages * engine.page_tokens:
        raise ConfigError(
            f"request {offered.index} has {offered.prompt_tokens} prompt and "
            f"{offered.output_tokens} output tokens, allowed: what fits into engine.kv_tokens="
            f"{engine.kv_tokens}; raise it, or set prompts.max_input_tokens"
        )
