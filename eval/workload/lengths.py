"""How many tokens: constant, uniform, lognormal, or drawn from a trace's rows."""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from bana.eval.workload.seeds import Purpose, Seeds
from bana.eval.workload.spec import (
    ConstantLength,
    EmpiricalLength,
    LengthSpec,
    LognormalLength,
    TraceFormat,
    TraceSpec,
    UniformLength,
)
from bana.eval.workload.traces import read_trace
from bana.slo.errors import ConfigError

Z99 = 2.3263478740408408  # the normal distribution's 99 % point


class Column(StrEnum):
    """Which length of a trace's row."""

    INPUT = "input"
    OUTPUT = "output"


class Draw(msgspec.Struct, frozen=True):
    """What a length is drawn for: how often, from which stream, which side of a row."""

    count: int
    purpose: Purpose
    column: Column


class Lengths(msgspec.Struct, frozen=True):
    """Lengths in tokens, and how many of them the distribution's bounds moved."""

    tokens: NDArray[np.int64]
    clipped: int = 0


def draw_lengths(spec: LengthSpec, draw: Draw, seeds: Seeds) -> Lengths:
    """`draw.count` lengths; more of them begin with the same ones."""
    match spec:
        case ConstantLength():
            return Lengths(np.full(draw.count, spec.tokens, dtype=np.int64))
        case UniformLength():
            rng = seeds.generator(draw.purpose)
            return Lengths(rng.integers(spec.low, spec.high, draw.count, endpoint=True))
        case LognormalLength():
            return _draw_lognormal(spec, draw.count, seeds.generator(draw.purpose))
        case EmpiricalLength():
            return _draw_rows(spec, draw, seeds)


def _draw_lognormal(spec: LognormalLength, count: int, rng: np.random.Generator) -> Lengths:
    sigma = _sigma(spec)
    mu = math.log(spec.median) if spec.median else math.log(spec.mean or 1.0) - sigma**2 / 2
    drawn = np.rint(rng.lognormal(mu, sigma, count))
    kept = np.clip(drawn, spec.low, spec.high)
    return Lengths(kept.astype(np.int64), int(np.count_nonzero(kept != drawn)))


def _sigma(spec: LognormalLength) -> float:
    if spec.sigma is not None:
        return spec.sigma
    p99 = spec.p99 or 1.0
    if spec.median is not None:
        return math.log(p99 / spec.median) / Z99
    # log p99 = mu + z s and log mean = mu + s**2 / 2: the smaller root is the unimodal choice.
    return Z99 - math.sqrt(Z99**2 - 2 * math.log(p99 / (spec.mean or 1.0)))


def _draw_rows(spec: EmpiricalLength, draw: Draw, seeds: Seeds) -> Lengths:
    trace = read_trace(TraceSpec(path=spec.path))
    if trace.format not in (TraceFormat.AZURE, TraceFormat.MOONCAKE):
        raise ConfigError(
            f"lengths of kind 'empirical' from {spec.path!r}: a trace of format "
            f"{trace.format.value!r} holds prompts, not lengths; name an azure or mooncake trace, "
            "or replay it as [trace]"
        )
    # One stream whatever the column: the same draw of both columns is the same row.
    rows = seeds.generator(Purpose.EMPIRICAL).integers(0, len(trace.rows), draw.count)
    is_input = draw.column is Column.INPUT
    known = [r.input_tokens if is_input else r.output_tokens for r in trace.rows]
    return Lengths(np.array(known, dtype=np.int64)[rows])
