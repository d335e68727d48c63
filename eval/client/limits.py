"""What each request is promised: absolute, or as multiples of the isolated latency."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from bana.eval.client.isolated import Isolated
from bana.eval.requests import Limits, Offered, Workload
from bana.slo.errors import ConfigError, describe_unknown

Positive = Annotated[float, msgspec.Meta(gt=0)]


class ClassLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The promise of one class; a dimension without a value is not promised.

    `ttft_x` and `tpot_x` multiply what a request of that length takes on the idle server.
    """

    ttft_ms: Positive | None = None
    tpot_ms: Positive | None = None
    e2e_ms: Positive | None = None
    ttft_x: Positive | None = None
    tpot_x: Positive | None = None

    def __post_init__(self) -> None:
        for absolute, multiple in (("ttft_ms", "ttft_x"), ("tpot_ms", "tpot_x")):
            if None not in (getattr(self, absolute), getattr(self, multiple)):
                raise ConfigError(
                    f"both {absolute} {getattr(self, absolute):g} and {multiple} "
                    f"{getattr(self, multiple):g} are given: keep one of them"
                )

    @property
    def is_relative(self) -> bool:
        """Whether the idle server must be measured first."""
        return self.ttft_x is not None or self.tpot_x is not None


def limits_for(offered: Offered, limits: ClassLimits, isolated: Isolated | None) -> Limits:
    """The promise to one request; ConfigError when a multiple has nothing to multiply."""
    if limits.is_relative and isolated is None:
        raise ConfigError(
            f"class {offered.slo_class!r} is promised multiples of the isolated latency, which was "
            "not measured: measure it at the start, or give milliseconds"
        )
    ttft_s, tpot_s = _to_seconds(limits.ttft_ms), _to_seconds(limits.tpot_ms)
    if limits.ttft_x is not None and isolated is not None:
        ttft_s = limits.ttft_x * isolated.estimate_ttft(offered.prompt_tokens)
    if limits.tpot_x is not None and isolated is not None:
        if isolated.tpot_s is None:
            raise ConfigError(
                f"tpot_x {limits.tpot_x:g} has nothing to multiply: no isolated answer had two "
                "tokens; give tpot_ms"
            )
        tpot_s = limits.tpot_x * isolated.tpot_s
    return Limits(ttft_s, tpot_s, _to_seconds(limits.e2e_ms))


def assign_limits(
    workload: Workload, classes: Mapping[str, ClassLimits], isolated: Isolated | None = None
) -> Workload:
    """The same workload with the promises of `classes`; ConfigError for a class not among them.

    The fingerprint stays: what is offered is the same whatever is promised.
    """
    for name in sorted({r.slo_class for r in workload.requests}):
        if name not in classes:
            raise ConfigError(
                f"{describe_unknown('SLO class', name, classes)}; the workload has requests of it: "
                "give its limits, an empty set for no promise"
            )
    requests = tuple(
        msgspec.structs.replace(r, limits=limits_for(r, classes[r.slo_class], isolated))
        for r in workload.requests
    )
    return msgspec.structs.replace(workload, requests=requests)


def _to_seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3
