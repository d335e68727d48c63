"""The rules of a workload's settings that a single key cannot show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import msgspec

from bana.eval.workload.spec import (
    ArrivalKind,
    ArrivalSpec,
    LengthSpec,
    LognormalLength,
    PromptForm,
    PromptSpec,
    RampSpec,
    TurnsSpec,
    UniformLength,
    WorkloadSpec,
)
from bana.slo.errors import ConfigError

# A lognormal whose p99 is further above its mean does not exist: exp(z99 ** 2 / 2).
MAX_P99_OVER_MEAN = 14.96
SHARE_TOLERANCE = 1e-6


class NamedLength(msgspec.Struct, frozen=True):
    """A length distribution and the key that gave it."""

    key: str
    spec: LengthSpec


def check_consistency(spec: WorkloadSpec) -> None:
    """Refuse settings that contradict each other; ConfigError names them."""
    _check_arrivals(spec.arrivals)
    if spec.arrivals.kind is ArrivalKind.TRACE:
        _check_replay(spec)
    else:
        _check_process(spec)
    _check_prompts(spec.prompts)
    _check_sources(spec)
    if spec.turns is not None:
        _check_turns(spec.turns, spec)
    for length in _named_lengths(spec):
        _check_length(length)
    _check_classes(spec.classes)


def expected_requests(spec: ArrivalSpec, rate_rps: float) -> float:
    """How many arrivals warm-up, window and cool-down hold on average."""
    ramp = spec.ramp or RampSpec(1.0, 1.0)
    window = (ramp.start + ramp.end) / 2 * (spec.duration_s or 0.0)
    return rate_rps * (ramp.start * spec.warmup_s + window + ramp.end * spec.cooldown_s)


def _refuse(key: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(f"workload {key}={value!r}: {allowed}")


def _check_arrivals(arrivals: ArrivalSpec) -> None:
    is_gamma = arrivals.kind is ArrivalKind.GAMMA
    if is_gamma and arrivals.cv is None:
        raise _refuse("arrivals.cv", None, "kind 'gamma' needs it; 1 is Poisson, 0 < cv <= 20")
    if not is_gamma and arrivals.cv is not None:
        allowed = f"only kind 'gamma' has one, this is {arrivals.kind.value!r}; remove it"
        raise _refuse("arrivals.cv", arrivals.cv, allowed)
    ramp = arrivals.ramp
    if ramp is not None and arrivals.kind is ArrivalKind.BENCH_SERVING:
        allowed = "bench_serving keeps its rate; remove it or take another kind of arrivals"
        raise _refuse("arrivals.ramp", [ramp.start, ramp.end], allowed)
    if ramp is not None and ramp.start + ramp.end == 0:
        raise _refuse("arrivals.ramp", [0, 0], "no request would ever be due; raise an end")


def _check_process(spec: WorkloadSpec) -> None:
    arrivals = spec.arrivals
    for key in ("rate_rps", "duration_s"):
        if getattr(arrivals, key) is None:
            allowed = f"arrivals of kind {arrivals.kind.value!r} need it; give a number above 0"
            raise _refuse(f"arrivals.{key}", None, allowed)
    if spec.trace is not None and spec.trace.time_scale is not None:
        allowed = "only arrivals of kind 'trace' are replayed in time; remove it or change the kind"
        raise _refuse("trace.time_scale", spec.trace.time_scale, allowed)
    expected = expected_requests(arrivals, arrivals.rate_rps or 0.0)
    if expected > arrivals.max_requests:
        allowed = (
            f"about {expected:.0f} requests would be due; lower arrivals.rate_rps or duration_s, "
            "or raise max_requests (at most 1000000)"
        )
        raise _refuse("arrivals.max_requests", arrivals.max_requests, allowed)


def _check_replay(spec: WorkloadSpec) -> None:
    arrivals, trace = spec.arrivals, spec.trace
    if trace is None:
        raise _refuse("arrivals.kind", "trace", "it needs a section trace with a path")
    if arrivals.ramp is not None:
        allowed = "the trace says when requests are due; remove it or take another kind"
        raise _refuse("arrivals.ramp", [arrivals.ramp.start, arrivals.ramp.end], allowed)
    if arrivals.rate_rps is not None and trace.time_scale is not None:
        allowed = "arrivals.rate_rps sets the time scale already; keep one of them"
        raise _refuse("trace.time_scale", trace.time_scale, allowed)


def _check_prompts(prompts: PromptSpec) -> None:
    if prompts.token_id_high - prompts.token_id_low < 2:
        allowed = f"at least two above token_id_low={prompts.token_id_low}, which is the first id"
        raise _refuse("prompts.token_id_high", prompts.token_id_high, allowed)
    if not prompts.file:
        if prompts.field:
            raise _refuse("prompts.field", prompts.field, "it names a field of prompts.file")
        return
    if prompts.form is PromptForm.TOKEN_IDS:
        allowed = "a file holds text, which has no token ids here; take 'text' or 'chat'"
        raise _refuse("prompts.form", prompts.form.value, allowed)
    if prompts.input_tokens is not None:
        raise _refuse("prompts.input_tokens", "…", "prompts.file says the lengths; remove one")


def _check_sources(spec: WorkloadSpec) -> None:
    if spec.trace is None:
        return
    if spec.prompts.file:
        raise _refuse("prompts.file", spec.prompts.file, "trace says the prompts; remove one")
    for key in ("input_tokens", "output_tokens"):
        if getattr(spec.prompts, key) is not None:
            allowed = "trace says the lengths; remove one, or draw them with kind 'empirical'"
            raise _refuse(f"prompts.{key}", "…", allowed)
    if spec.turns is not None:
        raise _refuse("turns", "…", "a trace is replayed row by row; remove one of them")


def _check_turns(turns: TurnsSpec, spec: WorkloadSpec) -> None:
    if spec.arrivals.kind is ArrivalKind.BENCH_SERVING:
        allowed = "arrivals of kind 'bench_serving' are single requests; remove one of them"
        raise _refuse("turns", "…", allowed)
    if spec.prompts.file:
        for key in ("low", "high", "new_tokens"):
            if getattr(turns, key) is not None:
                raise _refuse(f"turns.{key}", "…", "prompts.file says the turns; remove it")
        return
    if turns.low is None or turns.high is None:
        missing = "low" if turns.low is None else "high"
        raise _refuse(f"turns.{missing}", None, "give both, as turns a conversation (1 to 1000)")
    if turns.low > turns.high:
        raise _refuse("turns.low", turns.low, f"at most turns.high={turns.high}; swap them")


def _named_lengths(spec: WorkloadSpec) -> Iterator[NamedLength]:
    given = {
        "prompts.input_tokens": spec.prompts.input_tokens,
        "prompts.output_tokens": spec.prompts.output_tokens,
        "turns.new_tokens": spec.turns.new_tokens if spec.turns is not None else None,
    }
    return (NamedLength(key, length) for key, length in given.items() if length is not None)


def _check_length(named: NamedLength) -> None:
    length = named.spec
    if isinstance(length, UniformLength | LognormalLength) and length.low > length.high:
        allowed = f"at most high={length.high}; swap them"
        raise _refuse(f"{named.key}.low", length.low, allowed)
    if isinstance(length, LognormalLength):
        _check_lognormal(named.key, length)


def _check_lognormal(key: str, length: LognormalLength) -> None:
    for one, other in (("mean", "median"), ("p99", "sigma")):
        given = [name for name in (one, other) if getattr(length, name) is not None]
        if len(given) != 1:
            raise _refuse(key, given, f"a lognormal has exactly one of {one} and {other}")
    centre = length.median or length.mean or math.nan
    if length.p99 is not None and length.p99 <= centre:
        raise _refuse(f"{key}.p99", length.p99, f"above {centre:g}, the mean or median")
    if length.mean is not None and (length.p99 or 0.0) > MAX_P99_OVER_MEAN * length.mean:
        allowed = f"at most {MAX_P99_OVER_MEAN} times the mean; give a median instead"
        raise _refuse(f"{key}.p99", length.p99, allowed)


def _check_classes(classes: Mapping[str, float]) -> None:
    if classes and abs(sum(classes.values()) - 1.0) > SHARE_TOLERANCE:
        shares = ", ".join(f"{name} {share:g}" for name, share in sorted(classes.items()))
        total = sum(classes.values())
        raise ConfigError(f"workload classes ({shares}) add up to {total:g}; they must to 1")
