"""What the slo benchmark offers: lognormal lengths with Gamma gaps, or a recorded trace.

A seed's requests are the same at every load: time is compressed until they come at exactly the
rate that is asked for. Only their token ids are moved on, so that no prompt comes twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from bana.eval.bench.gaps import find_seed
from bana.eval.requests import Phase, Workload
from bana.eval.workload.build import build_workload
from bana.eval.workload.scale import scale_rate
from bana.eval.workload.spec import (
    ArrivalKind,
    ArrivalSpec,
    LognormalLength,
    PromptSpec,
    TraceFormat,
    TraceSpec,
    WorkloadSpec,
)

DATA_VARIABLE = "BANA_DATA"
CONVERSATION_TRACE = "traces/azure2023_conv.csv"
# Trace seconds from one seed's segment to the next, and those in which segments may begin.
SEGMENT_S = 500.0
SEGMENTS_S = 3_000.0
# Token ids are moved by less than this from rate to rate.
SHIFTS = 89


class Length(msgspec.Struct, frozen=True):
    """A lognormal number of tokens."""

    mean: float
    p99: float

    def scale(self, factor: float, longest: int) -> LognormalLength:
        """The same shape, shorter, and never longer than `longest`."""
        return LognormalLength(mean=self.mean * factor, p99=self.p99 * factor, high=longest)


class Shape(msgspec.Struct, frozen=True):
    """Lengths and gaps before `length_scale` shortens them; `trace` is a file below BANA_DATA."""

    input_tokens: Length
    output_tokens: Length
    cv: float
    length_scale: float
    trace: str = ""


class Ask(msgspec.Struct, frozen=True):
    """Which requests are wanted: `requests` in the window after `warmup_requests`, at `rate_rps`.

    Token ids lie in `first_token_id`..`last_token_id`.
    """

    seed: int
    rate_rps: float
    requests: int
    warmup_requests: int
    first_token_id: int
    last_token_id: int
    max_input_tokens: int


def find_trace(shape: Shape, environ: Mapping[str, str]) -> Path | None:
    """The recorded trace of this shape, None where there is none here."""
    folder = environ.get(DATA_VARIABLE, "")
    if not shape.trace or not folder:
        return None
    path = Path(folder) / shape.trace
    return path if path.is_file() else None


def name_source(shape: Shape, trace: Path | None) -> str:
    """What a report says about where requests come from; never a path of this machine."""
    if trace is not None:
        return f"{shape.trace} (times compressed), lengths times {shape.length_scale:g}"
    return (
        f"synthesised: lognormal lengths of mean {shape.input_tokens.mean:g} in, "
        f"{shape.output_tokens.mean:g} out, times {shape.length_scale:g}; Gamma gaps of CV "
        f"{shape.cv:g}"
    )


def offer_requests(shape: Shape, ask: Ask, trace: Path | None) -> Workload:
    """The schedule, equal for equal arguments; BenchError where no draw has enough requests."""
    if trace is not None:
        workload = build_workload(_replay(shape, ask, trace), ask.seed)
    else:
        seed = find_seed(ask.seed, shape.cv, ask.requests, ask.warmup_requests)
        workload = build_workload(_synthesise(shape, ask), seed)
    count = sum(request.phase is Phase.WINDOW for request in workload.requests)
    return scale_rate(workload, ask.rate_rps * workload.window_s / count)


def _synthesise(shape: Shape, ask: Ask) -> WorkloadSpec:
    """One request a second."""
    prompts = msgspec.structs.replace(
        _choose_tokens(ask),
        input_tokens=shape.input_tokens.scale(shape.length_scale, ask.max_input_tokens),
        output_tokens=shape.output_tokens.scale(shape.length_scale, ask.max_input_tokens),
    )
    arrivals = ArrivalSpec(
        kind=ArrivalKind.GAMMA,
        rate_rps=1.0,
        cv=shape.cv,
        duration_s=float(ask.requests),
        warmup_s=float(ask.warmup_requests),
    )
    return WorkloadSpec(arrivals=arrivals, prompts=prompts)


def _replay(shape: Shape, ask: Ask, trace: Path) -> WorkloadSpec:
    """One request a second, from a segment of the trace that is the seed's own."""
    rows = TraceSpec(
        path=str(trace),
        format=TraceFormat.AZURE,
        offset_s=ask.seed * SEGMENT_S % SEGMENTS_S,
        length_scale=shape.length_scale,
        max_requests=ask.requests + ask.warmup_requests,
    )
    arrivals = ArrivalSpec(
        kind=ArrivalKind.TRACE, rate_rps=1.0, warmup_s=float(ask.warmup_requests)
    )
    return WorkloadSpec(arrivals=arrivals, prompts=_choose_tokens(ask), trace=rows)


def _choose_tokens(ask: Ask) -> PromptSpec:
    shift = round(ask.rate_rps * 1_000) % SHIFTS
    return PromptSpec(
        token_id_low=ask.first_token_id + shift,
        token_id_high=ask.last_token_id - SHIFTS + shift,
        max_input_tokens=ask.max_input_tokens,
    )
