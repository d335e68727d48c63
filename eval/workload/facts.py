"""What readers must know of a workload to judge a figure that was measured with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bana.eval.requests import Offered, Phase
from bana.eval.workload.content import Content
from bana.eval.workload.schedule import Schedule
from bana.eval.workload.sources import Source
from bana.eval.workload.spec import PromptForm, WorkloadSpec

MIN_ARRIVALS_FOR_CV = 3


def describe_workload(
    spec: WorkloadSpec,
    source: Source,
    schedule: Schedule,
    requests: Sequence[Offered],
    content: Content,
) -> dict[str, object]:
    """Facts about the requests of the window; plain data, ready for JSON."""
    window = [request for request in requests if request.phase is Phase.WINDOW]
    return {
        "source": source.name,
        "form": source.form.value,
        "arrivals": spec.arrivals.kind.value,
        **describe_times(window, schedule.phases.window_s),
        "target_rate_rps": spec.arrivals.rate_rps,
        "warmup_s": schedule.phases.warmup_s,
        "window_s": schedule.phases.window_s,
        "cooldown_s": schedule.phases.cooldown_s,
        "time_scale": schedule.time_scale,
        "length_scale": spec.trace.length_scale if spec.trace is not None else 1.0,
        "requests": len(requests),
        "window_requests": len(window),
        "input_tokens": _describe_lengths([r.prompt_tokens for r in window]),
        "output_tokens": _describe_lengths([r.output_tokens for r in window]),
        "shared_prefix_share": content.shared_prefix_share,
        "shared_prefix_unit": "token" if source.form is PromptForm.TOKEN_IDS else "byte",
        "families": len({r.family for r in window if r.family}),
        "sessions": len({r.session for r in window if r.session}),
        "classes": _count_classes(window),
        "cancelled": sum(r.cancel_after_s is not None for r in window),
        "content_sha256": content.digest,
    }


def describe_times(window: Sequence[Offered], window_s: float) -> dict[str, object]:
    """The rate offered in the window and the coefficient of variation of its gaps."""
    gaps = np.diff([request.due_s for request in window])
    has_cv = len(window) >= MIN_ARRIVALS_FOR_CV and gaps.mean() > 0
    return {
        "rate_rps": len(window) / window_s,
        "arrival_cv": float(gaps.std() / gaps.mean()) if has_cv else None,
    }


def _describe_lengths(tokens: Sequence[int]) -> Mapping[str, float]:
    if not tokens:
        return {}
    p50, p99 = np.quantile(tokens, [0.5, 0.99], method="inverted_cdf").tolist()
    return {"mean": float(np.mean(tokens)), "p50": p50, "p99": p99, "largest": max(tokens)}


def _count_classes(window: Sequence[Offered]) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for request in window:
        counts[request.slo_class] = counts.get(request.slo_class, 0) + 1
    return dict(sorted(counts.items()))
