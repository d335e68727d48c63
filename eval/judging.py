"""Whether a request met all its limits, and if not, which it missed."""

from __future__ import annotations

import msgspec

from bana.eval.distributions import measure_tpot_s, measure_ttft_s, measure_wait_s
from bana.eval.requests import Ending, Observed
from bana.eval.summary import Dimension


class Judged(msgspec.Struct, frozen=True):
    """One request and what it missed; empty is met."""

    observed: Observed
    missed: frozenset[Dimension]

    @property
    def is_met(self) -> bool:
        return not self.missed


def judge(observed: Observed) -> frozenset[Dimension]:
    """Every reason for which a request did not meet its limits; empty when it met them all.

        due ─────────── first token ────────── end        TTFT, E2E: first token and end by
         ├── TTFT limit ──┤                     │         due + limit; else missed, also when the
         ├── E2E limit ─────────────────────┤   │         request was over later and without them

    A limit that is not set cannot be missed; one token has no TPOT. Whoever goes away as planned
    has an answer as far as it came, and is judged on that. A latency equal to its limit meets it.
    """
    limits, waited_s = observed.limits, measure_wait_s(observed)
    ttft_s = measure_ttft_s(observed)
    if ttft_s is None and observed.asked_tokens > 0:
        # Not out when the wait ended: late if that was past the limit, else nobody can tell.
        ttft_s = waited_s
    reasons = {
        Dimension.TTFT: _exceeds(ttft_s, limits.ttft_s),
        Dimension.TPOT: _exceeds(measure_tpot_s(observed), limits.tpot_s),
        Dimension.E2E: _exceeds(waited_s, limits.e2e_s),
        Dimension.NO_ANSWER: not _has_answer(observed),
    }
    return frozenset(dimension for dimension, is_missed in reasons.items() if is_missed)


def list_limits(observed: Observed) -> frozenset[Dimension]:
    """The dimensions in which a request has a limit."""
    limits = observed.limits
    set_s = {
        Dimension.TTFT: limits.ttft_s,
        Dimension.TPOT: limits.tpot_s,
        Dimension.E2E: limits.e2e_s,
    }
    return frozenset(dimension for dimension, limit_s in set_s.items() if limit_s is not None)


def _exceeds(seen_s: float | None, limit_s: float | None) -> bool:
    return seen_s is not None and limit_s is not None and seen_s > limit_s


def _has_answer(observed: Observed) -> bool:
    if observed.ending is Ending.FINISHED:
        return observed.output_tokens > 0 or observed.asked_tokens == 0
    return observed.ending is Ending.CANCELLED
