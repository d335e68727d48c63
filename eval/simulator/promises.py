"""What each request is promised: milliseconds, or multiples of what it takes alone."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bana.eval.client.limits import ClassLimits
from bana.eval.requests import Limits, Offered, Workload
from bana.eval.simulator.service import StepTimes, measure_alone_tpot_s, measure_alone_ttft_s
from bana.slo.errors import ConfigError, describe_unknown


class Alone(msgspec.Struct, frozen=True):
    """How a request that is alone is served: these step times, chunks of so many tokens."""

    times: StepTimes
    chunk_tokens: int


def promise(workload: Workload, classes: Mapping[str, ClassLimits], alone: Alone) -> Workload:
    """The same workload with its limits; ConfigError for a class without any."""
    for name in sorted({r.slo_class for r in workload.requests}):
        if name not in classes:
            raise ConfigError(
                f"{describe_unknown('SLO class', name, classes)}; the workload has requests of it: "
                "give its limits in the scene"
            )
    requests = tuple(
        msgspec.structs.replace(r, limits=_limit(r, classes[r.slo_class], alone))
        for r in workload.requests
    )
    return msgspec.structs.replace(workload, requests=requests)


def _limit(offered: Offered, limits: ClassLimits, alone: Alone) -> Limits:
    ttft_s, tpot_s = _to_seconds(limits.ttft_ms), _to_seconds(limits.tpot_ms)
    if limits.ttft_x is not None:
        alone_s = measure_alone_ttft_s(alone.times, offered.prompt_tokens, alone.chunk_tokens)
        ttft_s = limits.ttft_x * alone_s
    if limits.tpot_x is not None:
        tpot_s = limits.tpot_x * measure_alone_tpot_s(
            alone.times, offered.prompt_tokens, offered.output_tokens
        )
    return Limits(ttft_s, tpot_s, _to_seconds(limits.e2e_ms))


def _to_seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3
