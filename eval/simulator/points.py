"""One point of a scene: a policy, a segment, a rate, and what came of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from bana.eval.capacity import take_point
from bana.eval.goodput import summarise
from bana.eval.requests import LoadRun, Observed, Phase, Workload
from bana.eval.runs import tell_about
from bana.eval.simulator.deciding import DecisionSink
from bana.eval.simulator.hardware import Hardware
from bana.eval.simulator.policies import build_policies
from bana.eval.simulator.prefixes import PrefixPlan, plan_nothing, plan_prefixes
from bana.eval.simulator.promises import Alone, promise
from bana.eval.simulator.scene import change_engine
from bana.eval.simulator.simulate import Setup, simulate
from bana.eval.simulator.spec import PolicySpec, SceneSpec, Segment, list_segments
from bana.eval.summary import LoadPoint, Summary
from bana.eval.workload.build import build_workload
from bana.eval.workload.scale import scale_rate
from bana.eval.workload.spec import WorkloadSpec
from bana.slo.errors import ConfigError

MAX_SCALED = 4


class Point(msgspec.Struct, frozen=True):
    """One run that shall be made; `rate_rps` None is the workload's own rate."""

    policy: str
    segment: Segment
    rate_rps: float | None = None


class Measured(msgspec.Struct, frozen=True):
    """What came of a point; with a store, where prompt tokens came from."""

    point: Point
    summary: Summary
    event_hash: str
    events: int
    sources: Mapping[str, int] = {}

    @property
    def load_point(self) -> LoadPoint:
        """The point of a load grid; at the rate that was asked for, so that equal rates meet."""
        seen = take_point(self.summary)
        rate_rps = self.point.rate_rps or seen.offered_rps
        return msgspec.structs.replace(seen, offered_rps=rate_rps)


class Detail(enum.Enum):
    """Whether each token's time is kept; a search needs first and last ones alone."""

    TOKENS = "tokens"
    ENDS = "ends"


class _Prepared(msgspec.Struct, frozen=True):
    workload: Workload
    prefixes: Mapping[int, PrefixPlan]


class PointRunner:
    """Makes the runs of one scene. Equal rates of a segment offer equal requests to all."""

    def __init__(self, scene: SceneSpec, hardware: Hardware) -> None:
        self._scene = scene
        self._hardware = hardware
        self._workloads: dict[Segment, Workload] = {}
        self._plans: dict[tuple[Segment, int], PrefixPlan] = {}
        self._scaled: dict[tuple[Segment, float], Workload] = {}

    def measure(
        self, point: Point, detail: Detail = Detail.ENDS, sink: DecisionSink | None = None
    ) -> Measured:
        """Run a point."""
        policy = self._scene.policies[point.policy]
        setup = self._set_up(policy, point)
        workload = self._offer(point)
        run = simulate(workload, self._plan(point.segment, setup), setup, sink=sink)
        about = tell_about(workload, f"simulated {point.policy}")
        load = run.load if detail is Detail.TOKENS else _drop_tokens(run.load)
        summary = summarise(load, about)
        return Measured(point, summary, run.event_hash, run.events, run.sources)

    def _set_up(self, policy: PolicySpec, point: Point) -> Setup:
        scene = self._scene
        return Setup(
            engine=change_engine(scene.engine, policy, point.policy),
            policies=build_policies(policy),
            times=self._hardware.times,
            model=None if scene.belief.does_learn else self._hardware.model,
            doubt=scene.belief,
            seed=point.segment.seed,
            drain_s=scene.drain_s,
            store=scene.store,
        )

    def _offer(self, point: Point) -> Workload:
        base = self._workloads.get(point.segment)
        if base is None:
            base = self._workloads[point.segment] = self._build(point.segment)
        if point.rate_rps is None:
            return base
        key = (point.segment, point.rate_rps)
        if key not in self._scaled:
            while len(self._scaled) >= MAX_SCALED:
                del self._scaled[next(iter(self._scaled))]
            offered_rps = _count_window(base) / base.window_s
            self._scaled[key] = scale_rate(base, point.rate_rps / offered_rps)
        return self._scaled[key]

    def _build(self, segment: Segment) -> Workload:
        scene = self._scene
        workload = build_workload(_move(scene.workload, segment), segment.seed)
        alone = Alone(self._hardware.times, scene.alone_chunk_tokens)
        return promise(workload, scene.class_limits, alone)

    def _plan(self, segment: Segment, setup: Setup) -> PrefixPlan:
        page_tokens = setup.engine.page_tokens
        requests = self._workloads[segment].requests
        if not setup.engine.has_prefix_cache:
            return plan_nothing(requests, page_tokens)
        key = (segment, page_tokens)
        if key not in self._plans:
            self._plans[key] = plan_prefixes(requests, page_tokens)
        return self._plans[key]


def choose_single(scene: SceneSpec) -> Point:
    """The one point of a scene; ConfigError where there are several."""
    segments = list_segments(scene)
    rates: tuple[float | None, ...] = scene.grid.rates_rps or (None,)
    counts = {"policies": len(scene.policies), "segments": len(segments), "rates": len(rates)}
    if scene.grid.search is not None or any(count != 1 for count in counts.values()):
        said = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise ConfigError(
            f"decisions are written of a single run, the scene has {said}; choose with --policy, "
            "--set seeds=[0] and --set grid.rates_rps=[4], without a grid.search"
        )
    return Point(next(iter(scene.policies)), segments[0], rates[0])


def _count_window(workload: Workload) -> int:
    return sum(request.phase is Phase.WINDOW for request in workload.requests)


def _move(workload: WorkloadSpec, segment: Segment) -> WorkloadSpec:
    if workload.trace is None or segment.offset_s is None:
        return workload
    trace = msgspec.structs.replace(workload.trace, offset_s=segment.offset_s)
    return msgspec.structs.replace(workload, trace=trace)


def _drop_tokens(run: LoadRun) -> LoadRun:
    return msgspec.structs.replace(run, observed=tuple(map(_drop_events, run.observed)))


def _drop_events(seen: Observed) -> Observed:
    return msgspec.structs.replace(seen, event_times_s=(), event_tokens=())
