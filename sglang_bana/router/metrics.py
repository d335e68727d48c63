"""What operators see on `/metrics`: `bana_*`, with every label set bounded.

Endpoints come from the table, classes and instances from the configuration; reasons, which a
third-party policy may invent, are capped.
"""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from bana.slo.roles import Role
from sglang_bana.router.handoff_metrics import HandoffMetrics
from sglang_bana.router.instances import Instance
from sglang_bana.router.link_metrics import LinkCollector
from sglang_bana.router.scheduling_metrics import SchedulingCollector
from sglang_bana.router.store_metrics import StoreCollector
from sglang_bana.status import InstanceState, InstanceStatus, StoreStatus

MAX_REASONS = 32
OTHER = "other"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


class RouterMetrics:
    """The front door's counters and gauges, in a registry of their own."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry(auto_describe=True)
        self._scheduling = SchedulingCollector()
        self._registry.register(self._scheduling)
        self._links = LinkCollector()
        self._registry.register(self._links)
        self._store = StoreCollector()
        self._registry.register(self._store)
        self._reasons: set[str] = set()
        self.requests = self._counter(
            "requests", "Requests by how they ended.", "endpoint", "outcome", "slo_class"
        )
        self.first_byte = Histogram(
            "bana_request_first_byte_seconds",
            "Arrival to the first byte of the answer, at the front door.",
            ("slo_class",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.slo_outcomes = self._counter(
            "slo_outcome", "What became of each promise.", "slo_class", "outcome"
        )
        self.dispatches = self._counter(
            "dispatch",
            "Requests sent to an instance, by the policy's reason.",
            "instance",
            "reason",
        )
        self.retries = self._counter("retries", "Requests sent to another instance.", "reason")
        self.faults = self._counter(
            "policy_faults", "Decisions taken by the fallback after a fault.", "policy"
        )
        self.handoff = HandoffMetrics(self._registry)
        self.aborts = self._counter("aborts", "Aborts sent to instances.", "outcome")
        self.in_flight = self._gauge("in_flight", "Requests in flight.")
        self.waiting = self._gauge("waiting", "Requests that wait for a place at an instance.")
        self.draining = self._gauge("draining", "1 while the front door drains.")
        self._states = self._gauge(
            "instance_state", "1 for the state that holds.", "instance", "state"
        )
        self._roles = self._gauge(
            "instance_role", "1 for the role that it has.", "instance", "role"
        )
        self._failures = self._gauge("instance_failures", "Times it was lost.", "instance")
        self._belief = self._gauge(
            "router_belief", "What the router believes of an instance.", "instance", "quantity"
        )
        self._truth = self._gauge(
            "engine_truth", "What the instance last published.", "instance", "quantity"
        )

    def cap_reason(self, reason: str) -> str:
        """`reason`, or `other` once there are too many different ones."""
        if reason in self._reasons:
            return reason
        if len(self._reasons) >= MAX_REASONS:
            return OTHER
        self._reasons.add(reason)
        return reason

    def set_state(self, instance: Instance) -> None:
        """Show the state of an instance."""
        for state in InstanceState:
            self._states.labels(instance.name, state).set(float(instance.state is state))

    def render(
        self, statuses: tuple[InstanceStatus, ...], store: StoreStatus | None = None
    ) -> bytes:
        """The exposition text, with belief and truth as of now."""
        self._store.store = store
        reports = {s.name: s.scheduling for s in statuses if s.scheduling is not None}
        self._scheduling.reports = reports
        self._links.reports = {s.name: s.link for s in statuses if s.link is not None}
        for status in statuses:
            self._failures.labels(status.name).set(status.failures_total)
            for role in Role:
                self._roles.labels(status.name, role).set(float(status.role is role))
            self._show(self._belief, status.name, "in_flight", status.in_flight)
            self._show(self._belief, status.name, "prefill_tokens", status.prefill_tokens)
            self._show(self._belief, status.name, "decode_requests", status.decode_requests)
            self._show(self._belief, status.name, "waiting_requests", status.waiting_requests)
            truth = {
                "running_requests": status.engine_running_requests,
                "waiting_requests": status.engine_waiting_requests,
                "used_tokens": status.used_tokens,
                "capacity_tokens": status.capacity_tokens,
                "silent_seconds": status.silent_s,
            }
            for quantity, value in truth.items():
                self._show(self._truth, status.name, quantity, value)
        return generate_latest(self._registry)

    def _show(self, gauge: Gauge, instance: str, quantity: str, value: float | None) -> None:
        # An absent value is shown as absent, not as zero.
        if value is not None:
            gauge.labels(instance, quantity).set(value)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"bana_{name}", text, labels, registry=self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"bana_{name}", text, labels, registry=self._registry)
