"""What one request may still take: its limits and the absolute deadline they set.

arrival ───────────── deadline (arrival + TTFT limit)
   │ waited │ remaining service │ slack │
            now
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, TypeVar

import msgspec

from bana.slo.errors import describe_unknown
from bana.slo.handoff import HANDOFF_PARAM
from bana.slo.limits import MAX_LIMIT_S, ClassName, Slo, SloError

PREFIX = "bana_"
MAX_AGE_S = 86_400.0
# A caller may have read its clock before the request that it now reads was stamped.
EARLY_S = 1.0
# Two sums of the same three times differ by rounding only.
ROUNDING_S = 1e-3
_STEP = "let bana's front door write it"

P = TypeVar("P", bound="_Promise")
LimitSeconds = Annotated[float, msgspec.Meta(gt=0, le=MAX_LIMIT_S)]
ClockSeconds = Annotated[float, msgspec.Meta(ge=0, le=1e10)]


class Budget(msgspec.Struct, frozen=True):
    """The promise of one request, with times on CLOCK_MONOTONIC.

    `arrival_s` is stamped once, at the front door. `e2e_s` limits the whole answer, None where
    nothing was promised about it.
    """

    slo_class: str
    arrival_s: float
    ttft_s: float
    tpot_s: float
    e2e_s: float | None = None

    @property
    def deadline_s(self) -> float:
        """When the first token is due at the latest."""
        return self.arrival_s + self.ttft_s

    def slack_s(self, now_s: float, remaining_s: float) -> float:
        """Seconds to spare when `remaining_s` of service are left; negative means late."""
        return self.deadline_s - now_s - remaining_s


class Limit(StrEnum):
    """What a budget can limit."""

    TTFT = "ttft"
    TPOT = "tpot"
    E2E = "e2e"


class BudgetOutcome(msgspec.Struct, frozen=True):
    """What became of one budget.

    `slack_s` was left at the first token, negative when it was late. Each limit that was set and
    has a value is either in `met` or in `missed`; one token has no TPOT.
    """

    ttft_s: float
    tpot_s: float | None
    slack_s: float
    met: tuple[Limit, ...]
    missed: tuple[Limit, ...]

    @property
    def is_met(self) -> bool:
        """Whether no limit was missed."""
        return not self.missed


def judge_budget(
    budget: Budget, first_token_s: float, last_token_s: float, output_tokens: int
) -> BudgetOutcome:
    """The outcome of an answer of at least one token; a latency equal to its limit meets it.

    As `eval` judges, but from arrival at the front door and by the engine's own clock.
    """
    ttft_s = first_token_s - budget.arrival_s
    span_s = last_token_s - first_token_s
    tpot_s = span_s / (output_tokens - 1) if output_tokens > 1 else None
    judged = (
        (Limit.TTFT, ttft_s, budget.ttft_s),
        (Limit.TPOT, tpot_s, budget.tpot_s),
        (Limit.E2E, last_token_s - budget.arrival_s, budget.e2e_s),
    )
    kept = {
        limit: seen_s <= limit_s
        for limit, seen_s, limit_s in judged
        if seen_s is not None and limit_s is not None
    }
    return BudgetOutcome(
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        slack_s=budget.ttft_s - ttft_s,
        met=tuple(limit for limit, is_kept in kept.items() if is_kept),
        missed=tuple(limit for limit, is_kept in kept.items() if not is_kept),
    )


class _Promise(msgspec.Struct, frozen=True, kw_only=True, rename=lambda field: PREFIX + field):
    """What every promise carries in `custom_params`."""

    slo_class: ClassName
    ttft_s: LimitSeconds
    tpot_s: LimitSeconds
    e2e_s: LimitSeconds | None = None


class _LocalPromise(_Promise, frozen=True, kw_only=True):
    """Of a front door on this host: times on CLOCK_MONOTONIC of the boot it names."""

    arrival_s: ClockSeconds
    deadline_s: ClockSeconds
    boot_id: str


class _RemotePromise(_Promise, frozen=True, kw_only=True):
    """Of a front door elsewhere: what is left of the TTFT limit, negative when it has passed."""

    remaining_s: Annotated[float, msgspec.Meta(ge=-MAX_AGE_S, le=MAX_LIMIT_S + EARLY_S)]


def read_budget(params: Mapping[str, object], now_s: float, boot_id: str, default: Slo) -> Budget:
    """The budget in `custom_params` as a front door writes it; SloError for anything else.

    A request without a word of ours is promised `default` from now on. One with some of them
    carries the whole promise: in times of this boot (`boot_id`), or as the time that remains.
    """
    words = {
        key: value
        for key, value in params.items()
        if key.startswith(PREFIX) and key != HANDOFF_PARAM
    }
    if not words:
        return Budget(default.slo_class, now_s, default.ttft_s, default.tpot_s, default.e2e_s)
    promise: _LocalPromise | _RemotePromise
    if PREFIX + "remaining_s" in words:
        promise = _convert(words, _RemotePromise)
        arrival_s = now_s + promise.remaining_s - promise.ttft_s
    else:
        promise = _convert(words, _LocalPromise)
        arrival_s = promise.arrival_s
        _check_clock(promise, boot_id)
    if not -EARLY_S <= now_s - arrival_s <= MAX_AGE_S:
        allowed = f"at most {EARLY_S:g} s after and {MAX_AGE_S:g} s before the present {now_s!r}"
        raise _refuse("arrival_s", f"{arrival_s!r} is not {allowed}")
    return Budget(promise.slo_class, arrival_s, promise.ttft_s, promise.tpot_s, promise.e2e_s)


def _convert(words: Mapping[str, object], kind: type[P]) -> P:
    known = msgspec.structs.fields(kind)
    names = [field.encode_name for field in known]
    for word in sorted(words):
        if word not in names:
            what = describe_unknown("word in custom_params:", word[:64], names)
            raise SloError("slo_param_unknown", f"custom_params.{word[:64]}", what)
    try:
        return msgspec.convert(words, type=kind, strict=True)
    except msgspec.ValidationError as error:
        message = f"custom_params: {error}; {_STEP}"
        raise SloError("slo_invalid", "custom_params", message) from error


def _check_clock(promise: _LocalPromise, boot_id: str) -> None:
    """That the times are of this boot, and agree."""
    if promise.boot_id != boot_id:
        told = f"{promise.boot_id[:64]!r} is another boot than this one"
        raise _refuse("boot_id", f"{told}, and their clocks cannot be compared")
    due_s = promise.arrival_s + promise.ttft_s
    if abs(promise.deadline_s - due_s) > ROUNDING_S:
        raise _refuse("deadline_s", f"{promise.deadline_s!r} is not arrival + ttft = {due_s!r}")


def _refuse(field: str, what: str) -> SloError:
    param = f"custom_params.{PREFIX}{field}"
    return SloError("slo_invalid", param, f"{param}: {what}; {_STEP}")
