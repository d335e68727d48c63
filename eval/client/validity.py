"""Whether a run proves anything: whether its client kept the schedule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bana.eval.client.plan import ClientPlan
from bana.eval.requests import Observed, Validity

LATENESS_QUANTILE = 0.99


def judge_validity(observed: Sequence[Observed], plan: ClientPlan) -> Validity:
    """Valid when all was sent, and the p99 of lateness is within the limit."""
    reasons = []
    if not observed:
        reasons.append("no request was offered")
    unsent = sum(seen.sent_s is None for seen in observed)
    if unsent:
        reasons.append(
            f"{unsent} of {len(observed)} requests were not sent, since {plan.max_outstanding} "
            "others were out: raise max_outstanding, or offer less"
        )
    lateness_s = measure_lateness(observed)
    if lateness_s is not None and lateness_s > plan.lateness_limit_s:
        reasons.append(
            f"the client was late: p99 {lateness_s * 1e3:.1f} ms after the schedule, allowed "
            f"{plan.lateness_limit_s * 1e3:.4g} ms: give it a core of its own, or offer less"
        )
    return Validity(not reasons, tuple(reasons))


def measure_lateness(observed: Sequence[Observed]) -> float | None:
    """p99 of send minus due, in seconds; None when nothing was sent."""
    late_s = [seen.sent_s - seen.due_s for seen in observed if seen.sent_s is not None]
    if not late_s:
        return None
    return float(np.quantile(late_s, LATENESS_QUANTILE, method="higher"))
