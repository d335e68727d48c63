"""What a request was promised: its SLO class, limits and absolute deadline.

`resolve_slo` turns what a client asked for into what bana promises. Bad input is refused, a
number outside the configured range is clamped and the effective value is echoed by the caller;
an overflowing value must never sort first (CONVENTIONS of SLO headers: llm-d).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

import msgspec

from bana.slo.errors import ConfigError, describe_unknown

MAX_LIMIT_S = 86_400.0

PositiveMs = Annotated[float, msgspec.Meta(gt=0, le=MAX_LIMIT_S * 1e3)]
RequestCount = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
# It is echoed in headers and labels.
ClassName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]


class SloError(ConfigError):
    """A client's SLO cannot be used; `code` is stable and goes into the error body."""

    def __init__(self, code: str, param: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class SloClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The defaults of one class. A higher `rank` is the stricter promise.

    `e2e_ms` limits the whole answer, `max_requests` how many of its requests are in flight at the
    front door; neither is limited where it is absent.
    """

    rank: int
    ttft_ms: PositiveMs
    tpot_ms: PositiveMs
    e2e_ms: PositiveMs | None = None
    max_requests: RequestCount | None = None


class SloRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client may ask for; outside it a value is clamped."""

    min_ttft_ms: PositiveMs = 1.0
    max_ttft_ms: PositiveMs = 600_000.0
    min_tpot_ms: PositiveMs = 1.0
    max_tpot_ms: PositiveMs = 60_000.0
    min_e2e_ms: PositiveMs = 1.0
    max_e2e_ms: PositiveMs = MAX_LIMIT_S * 1e3


class SloAsk(msgspec.Struct, frozen=True):
    """What one client asked for, as text, None where it said nothing.

    `key_class` is the class fixed by the API key: the client may lower it, never raise it.
    """

    ttft_ms: str | None = None
    tpot_ms: str | None = None
    e2e_ms: str | None = None
    slo_class: str | None = None
    key_class: str | None = None


class Slo(msgspec.Struct, frozen=True):
    """An effective promise. `clamped` names the limits that were moved into the range.

    `e2e_s` is None where nothing was promised about the whole answer.
    """

    slo_class: str
    ttft_s: float
    tpot_s: float
    e2e_s: float | None = None
    clamped: tuple[str, ...] = ()


class SloRules(msgspec.Struct, frozen=True):
    """The server's classes, their default and the allowed range."""

    default_class: str
    classes: Mapping[str, SloClass]
    allowed: SloRange = SloRange()

    def __post_init__(self) -> None:
        if self.default_class not in self.classes:
            what = "SLO class in slo.default_class:"
            raise ConfigError(describe_unknown(what, self.default_class, self.classes))
        for dimension in ("ttft", "tpot", "e2e"):
            low = getattr(self.allowed, f"min_{dimension}_ms")
            high = getattr(self.allowed, f"max_{dimension}_ms")
            if low > high:
                raise ConfigError(
                    f"slo.allowed.min_{dimension}_ms={low} exceeds max_{dimension}_ms={high}; "
                    "swap or widen them"
                )


def resolve_slo(ask: SloAsk, rules: SloRules) -> Slo:
    """The promise for one request; SloError when the client's words cannot be used."""
    name = _resolve_class(ask, rules)
    chosen = rules.classes[name]
    allowed = rules.allowed
    ttft_ms = _parse_ms("ttft", ask.ttft_ms, chosen.ttft_ms)
    tpot_ms = _parse_ms("tpot", ask.tpot_ms, chosen.tpot_ms)
    e2e_ms = _parse_optional_ms("e2e", ask.e2e_ms, chosen.e2e_ms)
    kept_ttft_ms = min(max(ttft_ms, allowed.min_ttft_ms), allowed.max_ttft_ms)
    kept_tpot_ms = min(max(tpot_ms, allowed.min_tpot_ms), allowed.max_tpot_ms)
    kept_e2e_ms = None
    if e2e_ms is not None:
        kept_e2e_ms = min(max(e2e_ms, allowed.min_e2e_ms), allowed.max_e2e_ms)
    moved = {
        "ttft": kept_ttft_ms != ttft_ms,
        "tpot": kept_tpot_ms != tpot_ms,
        "e2e": kept_e2e_ms != e2e_ms,
    }
    return Slo(
        slo_class=name,
        ttft_s=kept_ttft_ms / 1e3,
        tpot_s=kept_tpot_ms / 1e3,
        e2e_s=None if kept_e2e_ms is None else kept_e2e_ms / 1e3,
        clamped=tuple(limit for limit, was_moved in moved.items() if was_moved),
    )


def _resolve_class(ask: SloAsk, rules: SloRules) -> str:
    granted = ask.key_class or rules.default_class
    wanted = ask.slo_class or granted
    for name in (granted, wanted):
        if name not in rules.classes:
            raise SloError(
                "slo_class_unknown", "slo_class", describe_unknown("SLO class", name, rules.classes)
            )
    if ask.key_class is not None and rules.classes[wanted].rank > rules.classes[granted].rank:
        raise SloError(
            "slo_class_not_allowed",
            "slo_class",
            f"SLO class {wanted!r} is above {granted!r}, the class of this API key; "
            "ask for the same or a lower class",
        )
    return wanted


def _parse_optional_ms(limit: str, text: str | None, default_ms: float | None) -> float | None:
    return default_ms if text is None else _parse_ms(limit, text, 0.0)


def _parse_ms(limit: str, text: str | None, default_ms: float) -> float:
    if text is None:
        return default_ms
    try:
        # Python alone reads `1_000` and the digits of other scripts as numbers.
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if math.isnan(value) or value <= 0:
        raise SloError(
            "slo_invalid",
            f"slo_{limit}_ms",
            f"SLO {limit}_ms={text[:64]!r} is not a positive number; send milliseconds, e.g. 500",
        )
    return value
