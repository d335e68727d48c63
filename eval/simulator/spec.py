"""What a scene is: a workload, an engine, how long its steps take, policies, rates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from bana.eval.client.limits import ClassLimits
from bana.eval.live.spec import MAX_RATES, MAX_SEEDS, PAPER_LIMITS, Rate, SearchSpec
from bana.eval.requests import DEFAULT_CLASS
from bana.eval.simulator.engine_spec import EngineSpec
from bana.eval.simulator.predicting import DoubtSpec
from bana.eval.simulator.store.spec import StoreSpec
from bana.eval.workload.spec import Seconds, Section, SomeSeconds, Text, WorkloadSpec
from bana.slo.decisions import PolicyChoice
from bana.slo.limits import ClassName
from bana.slo.steps import StepModel

Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class CoefficientTimes(Section, frozen=True, tag_field="kind", tag="coefficients"):
    """Steps by the coefficients of `model`, or of the JSON `file` that holds them."""

    model: StepModel | None = None
    file: str = ""


class KernelTimes(Section, frozen=True, tag_field="kind", tag="tables"):
    """Steps by measured SGLang kernels: `model` on `system` (gb200, h200_sxm, …)."""

    model: Text = "meta-llama/Meta-Llama-3.1-70B"
    system: Text = "gb200"
    tensor_parallel: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4


class FittedTimes(Section, frozen=True, tag_field="kind", tag="fitted"):
    """Steps by the coefficients that come nearest to those kernels, as if they were the truth."""

    model: Text = "meta-llama/Meta-Llama-3.1-70B"
    system: Text = "gb200"
    tensor_parallel: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4


ServiceSpec = CoefficientTimes | KernelTimes | FittedTimes


class BeliefSpec(DoubtSpec, frozen=True):
    """What policies believe of step times: the fitted coefficients, wrong as `DoubtSpec` says.

    `does_learn`: they begin with nothing instead, and learn from the steps that they see.
    """

    does_learn: bool = False


class PolicySpec(Section, frozen=True):
    """One row of the table: who decides, on an engine changed by `engine`.

    A row without `restore` has no store, and its prefix cache alone.
    Rows of one `tuned_as` are one system with several settings, of which the best counts.
    `is_baseline` rows are those that the others are compared with.
    """

    order: PolicyChoice = PolicyChoice("budget")
    governor: PolicyChoice = PolicyChoice("tpot")
    admission: PolicyChoice | None = None
    restore: PolicyChoice | None = None
    engine: Mapping[str, Any] = {}
    tuned_as: str = ""
    is_baseline: bool = False


class RatesSpec(Section, frozen=True):
    """At which rates: `rates_rps`, those that `search` chooses, or the workload's own.

    The max rate is the highest at which `target_attainment` is kept; the p99-bounded one also
    keeps the p99 TTFT within `p99_limit_s`.
    """

    rates_rps: Annotated[tuple[Rate, ...], msgspec.Meta(max_length=MAX_RATES)] = ()
    search: SearchSpec | None = None
    target_attainment: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
    p99_limit_s: Positive = 20.0


class SceneSpec(Section, frozen=True):
    """One scene. A segment is a seed with, of a trace, an offset; every policy meets each.

    `limits` by class; without any, every class is promised multiples of what a request takes alone
    in chunks of `alone_chunk_tokens`. `drain_s` after the last arrival a run ends.
    """

    workload: WorkloadSpec
    engine: EngineSpec
    policies: Annotated[Mapping[ClassName, PolicySpec], msgspec.Meta(min_length=1)]
    store: StoreSpec | None = None
    service: ServiceSpec = KernelTimes()
    overhead_ms: NotNegative = 0.0
    belief: BeliefSpec = BeliefSpec()
    limits: Mapping[ClassName, ClassLimits] = {}
    alone_chunk_tokens: Annotated[int, msgspec.Meta(ge=1, le=1_048_576)] = 2048
    grid: RatesSpec = RatesSpec()
    seeds: Annotated[tuple[int, ...], msgspec.Meta(min_length=1, max_length=MAX_SEEDS)] = (0,)
    offsets_s: Annotated[tuple[Seconds, ...], msgspec.Meta(max_length=MAX_SEEDS)] = ()
    drain_s: SomeSeconds = 300.0

    @property
    def class_limits(self) -> Mapping[str, ClassLimits]:
        """The promise to every class that the workload has."""
        return self.limits or dict.fromkeys(self.workload.classes or (DEFAULT_CLASS,), PAPER_LIMITS)


class Segment(msgspec.Struct, frozen=True):
    """One draw of the workload."""

    seed: int
    offset_s: float | None = None

    @property
    def label(self) -> str:
        """What tells it from other segments."""
        return f"seed{self.seed}" + ("" if self.offset_s is None else f"+{self.offset_s:g}s")


def list_segments(scene: SceneSpec) -> list[Segment]:
    """Every seed with every offset, offsets of a seed one after the other."""
    offsets: tuple[float | None, ...] = scene.offsets_s or (None,)
    return [Segment(seed, offset) for seed in scene.seeds for offset in offsets]
