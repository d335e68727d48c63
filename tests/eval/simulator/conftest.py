"""Small workloads, step times and instances, with what they have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from bana.eval.requests import Limits, Observed, Offered, Prompt, Workload
from bana.eval.simulator.deciding import DecisionSink, Policies
from bana.eval.simulator.engine_spec import EngineSpec
from bana.eval.simulator.log import KeptLog
from bana.eval.simulator.prefixes import PrefixPlan, plan_nothing, plan_prefixes
from bana.eval.simulator.service import StepTimes
from bana.eval.simulator.simulate import Setup, SimRun, simulate
from bana.eval.simulator.store.spec import StoreSpec
from bana.slo.admission import ADMISSION
from bana.slo.governor import GOVERNORS
from bana.slo.order import ORDERS
from bana.slo.restore import RESTORES
from bana.slo.steps import StepModel

# Round numbers, so that what a request takes can be summed by hand: 10 ms a step and 1 ms a prompt
# token, 2 ms a decoding request.
ROUND_TIMES = StepModel(
    prefill_base_s=0.010,
    prefill_token_s=0.001,
    attended_token_s=0.0,
    decode_base_s=0.010,
    decode_request_s=0.002,
    context_token_s=0.0,
)

NO_LIMITS = Limits()
AMPLE = EngineSpec(kv_tokens=100_000, page_tokens=4)


@dataclasses.dataclass(frozen=True)
class Ask:
    """A request in short. `shared` tokens at its beginning are those of every other with some."""

    due_s: float = 0.0
    prompt: int = 100
    output: int = 1
    shared: int = 0
    is_open_ended: bool = False
    cancel_after_s: float | None = None
    limits: Limits = NO_LIMITS


def offer(asks: Sequence[Ask]) -> Workload:
    """The workload of these requests, by due time; prompts differ beyond what they share."""
    ordered = sorted(asks, key=lambda ask: ask.due_s)
    requests = tuple(_offer_one(index, ask) for index, ask in enumerate(ordered))
    window_s = max((ask.due_s for ask in asks), default=0.0) + 1.0
    return Workload(requests, window_s, seed=0, fingerprint="made up", facts={"warmup_s": 0.0})


def _offer_one(index: int, ask: Ask) -> Offered:
    own = [1_000_000 * (index + 1) + place for place in range(ask.prompt)]
    ids = [*range(ask.shared), *own[ask.shared :]]
    return Offered(
        index=index,
        due_s=ask.due_s,
        prompt=Prompt(token_ids=ids),
        prompt_tokens=ask.prompt,
        output_tokens=ask.output,
        ignore_eos=not ask.is_open_ended,
        limits=ask.limits,
        cancel_after_s=ask.cancel_after_s,
    )


@dataclasses.dataclass(frozen=True)
class Served:
    """A run with everything that happened in it."""

    run: SimRun
    log: KeptLog

    @property
    def observed(self) -> tuple[Observed, ...]:
        return self.run.load.observed


@dataclasses.dataclass(frozen=True)
class Server:
    """An instance that can be asked again and again; every field may be replaced."""

    engine: EngineSpec = AMPLE
    order: str = "fcfs"
    governor: str = "prefill_first"
    admission: str | None = None
    restore: str | None = None
    store: StoreSpec | None = None
    options: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)
    times: StepTimes = ROUND_TIMES
    model: StepModel | None = ROUND_TIMES
    seed: int = 0
    drain_s: float = 10_000.0

    def but(self, **changes: object) -> Server:
        """The same with other fields; those of the engine by their own names."""
        known = {field.name for field in dataclasses.fields(self)}
        engine = {key: value for key, value in changes.items() if key not in known}
        own = {key: value for key, value in changes.items() if key in known}
        changed: dict[str, Any] = {"engine": msgspec.structs.replace(self.engine, **engine), **own}
        return dataclasses.replace(self, **changed)

    def policies(self) -> Policies:
        admission = None
        if self.admission is not None:
            admission = ADMISSION.create(self.admission, self.options.get("admission"))
        restore = None
        if self.restore is not None:
            restore = RESTORES.create(self.restore, self.options.get("restore"))
        return Policies(
            ORDERS.create(self.order, self.options.get("order")),
            GOVERNORS.create(self.governor, self.options.get("governor")),
            admission,
            restore,
        )

    def serve(self, asks: Sequence[Ask], sink: DecisionSink | None = None) -> Served:
        workload, log = offer(asks), KeptLog()
        plan = self._plan(workload)
        setup = Setup(
            engine=self.engine,
            policies=self.policies(),
            times=self.times,
            model=self.model,
            seed=self.seed,
            drain_s=self.drain_s,
            store=self.store,
        )
        return Served(simulate(workload, plan, setup, log, sink), log)

    def _plan(self, workload: Workload) -> PrefixPlan:
        plan = plan_prefixes if self.engine.has_prefix_cache else plan_nothing
        return plan(workload.requests, self.engine.page_tokens)


@pytest.fixture(scope="session")
def server() -> Server:
    """FCFS and prompts first, ample KV, pages of 4 tokens, chunks of 2048."""
    return Server()


@pytest.fixture(scope="session")
def ask() -> Callable[..., Ask]:
    """Builds a request in short."""
    return Ask


@pytest.fixture(scope="session")
def offer_asks() -> Callable[[Sequence[Ask]], Workload]:
    """The workload of some requests in short."""
    return offer


@pytest.fixture(scope="session")
def round_times() -> StepModel:
    """10 ms a step, 1 ms a prompt token, 2 ms a decoding request."""
    return ROUND_TIMES
