"""What operators see of hand-offs."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


class HandoffMetrics:
    """Counts of one front door; outcomes and reasons come from closed lists."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.handoffs = Counter(
            "bana_handoffs",
            "Prompts given to another instance: sent, and how they ended there.",
            ("outcome",),
            registry=registry,
        )
        self.skips = Counter(
            "bana_handoff_skips",
            "Requests that generate whose prompt was not given to another instance.",
            ("reason",),
            registry=registry,
        )
        self.seconds = Histogram(
            "bana_handoff_prefill_seconds",
            "How long an instance took for the prompt of a request that another answers.",
            buckets=_SECONDS,
            registry=registry,
        )
