"""What a live measurement is: the workload, what is promised, how it is sent, at which rates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from bana.eval.client.limits import ClassLimits
from bana.eval.client.plan import ClientPlan, Endpoint, Timeouts
from bana.eval.client.target import Target
from bana.eval.requests import DEFAULT_CLASS
from bana.eval.workload.spec import PromptForm, Section, WorkloadSpec
from bana.slo.errors import ConfigError
from bana.slo.limits import ClassName

Rate = Annotated[float, msgspec.Meta(gt=0, le=100_000)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
# The multiples of the isolated latency that Cascade (section 6) promises.
PAPER_LIMITS = ClassLimits(ttft_x=10.0, tpot_x=5.0)
MAX_SEEDS = 1000
MAX_RATES = 100


class ClientSpec(Section, frozen=True):
    """How requests are sent. A `probe_rps` or `sample_interval_s` of 0 switches that off.

    `model` is what OpenAI endpoints are asked for; empty: the first that the server lists.
    """

    endpoint: Endpoint = Endpoint.GENERATE
    model: str = ""
    timeouts: Timeouts = Timeouts()
    lateness_limit_ms: Positive = 50.0
    max_outstanding: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 4096
    probe_rps: NotNegative = 0.5
    sample_interval_s: NotNegative = 1.0
    temperature: NotNegative = 0.0
    headers: Mapping[str, str] = {}

    @property
    def needs_model(self) -> bool:
        """Whether a model must be named to the endpoint, and none is."""
        return self.endpoint is not Endpoint.GENERATE and not self.model

    def plan(self, target: Target, label: str) -> ClientPlan:
        """The client of one run against `target`; `needs_model` is settled before."""
        return ClientPlan(
            target=target,
            endpoint=self.endpoint,
            model=self.model,
            timeouts=self.timeouts,
            lateness_limit_s=self.lateness_limit_ms / 1e3,
            max_outstanding=self.max_outstanding,
            probe_rps=self.probe_rps or None,
            sample_interval_s=self.sample_interval_s or None,
            temperature=self.temperature,
            headers=self.headers,
            label=label,
        )


class SearchSpec(Section, frozen=True):
    """Look for the max rate between `min_rps` and `max_rps`, beginning at `start_rps`.

    It ends when a held and an exceeded rate are within the factor `tolerance`, or after
    `max_points` runs.
    """

    start_rps: Rate
    min_rps: Rate = 0.01
    max_rps: Rate = 10_000.0
    tolerance: Annotated[float, msgspec.Meta(gt=1, le=10)] = 1.1
    max_points: Annotated[int, msgspec.Meta(ge=1, le=100)] = 12


class GridSpec(Section, frozen=True):
    """At which rates to measure: those of `rates_rps`, those that a search chooses, or neither.

    The max rate is the highest at which `target_attainment` is kept; the p99-bounded one also
    keeps the p99 TTFT within `p99_factor` times the median isolated TTFT.
    """

    rates_rps: Annotated[tuple[Rate, ...], msgspec.Meta(max_length=MAX_RATES)] = ()
    search: SearchSpec | None = None
    target_attainment: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
    p99_factor: Positive = 40.0


class LiveSpec(Section, frozen=True):
    """One measurement. `limits` by SLO class; without any, every class is promised PAPER_LIMITS."""

    workload: WorkloadSpec
    limits: Mapping[ClassName, ClassLimits] = {}
    client: ClientSpec = ClientSpec()
    grid: GridSpec = GridSpec()
    seeds: Annotated[tuple[int, ...], msgspec.Meta(min_length=1, max_length=MAX_SEEDS)] = (0,)

    @property
    def class_limits(self) -> Mapping[str, ClassLimits]:
        """The promise to every class that the workload has."""
        return self.limits or dict.fromkeys(self.workload.classes or (DEFAULT_CLASS,), PAPER_LIMITS)

    @property
    def needs_isolated(self) -> bool:
        """Whether the idle server must be measured first."""
        return any(limits.is_relative for limits in self.class_limits.values())


def complete_spec(spec: LiveSpec) -> LiveSpec:
    """The same with classes and limits that fit each other; ConfigError for what cannot be run.

    Limits without shares give every class the same share; the chat endpoint asks in messages.
    """
    if spec.grid.rates_rps and spec.grid.search is not None:
        raise ConfigError("grid.rates_rps and grid.search exclude each other; keep one of them")
    if len(set(spec.seeds)) < len(spec.seeds):
        raise ConfigError(f"seeds {list(spec.seeds)}: each may be given once; leave out the others")
    workload = spec.workload
    if spec.limits and not workload.classes:
        shares = dict.fromkeys(spec.limits, 1 / len(spec.limits))
        workload = msgspec.structs.replace(workload, classes=shares)
    prompts = workload.prompts
    if spec.client.endpoint is Endpoint.CHAT and prompts.form is None and workload.trace is None:
        prompts = msgspec.structs.replace(prompts, form=PromptForm.CHAT)
        workload = msgspec.structs.replace(workload, prompts=prompts)
    return msgspec.structs.replace(spec, workload=workload)


def set_rate(workload: WorkloadSpec, rate_rps: float) -> WorkloadSpec:
    """The same workload at another mean rate; a trace is replayed faster or slower."""
    arrivals = msgspec.structs.replace(workload.arrivals, rate_rps=rate_rps)
    trace = workload.trace
    if trace is not None and trace.time_scale is not None:
        trace = msgspec.structs.replace(trace, time_scale=None)
    return msgspec.structs.replace(workload, arrivals=arrivals, trace=trace)


def name_model(spec: LiveSpec, model: str) -> LiveSpec:
    """The same measurement, asking for `model`."""
    return msgspec.structs.replace(spec, client=msgspec.structs.replace(spec.client, model=model))
