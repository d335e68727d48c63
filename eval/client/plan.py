"""How a load run is carried out: where to, in which shape, and when to give up."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from bana.eval.client.target import Target, render_headers
from bana.slo.errors import ConfigError

MAX_PROBE_RPS = 20.0
MIN_SAMPLE_INTERVAL_S = 0.1


class Endpoint(StrEnum):
    """Which of a server's doors is used."""

    GENERATE = "generate"
    COMPLETIONS = "completions"
    CHAT = "chat"

    @property
    def path(self) -> str:
        return _PATHS[self]


_PATHS = {
    Endpoint.GENERATE: "/generate",
    Endpoint.COMPLETIONS: "/v1/completions",
    Endpoint.CHAT: "/v1/chat/completions",
}


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds. `first_token_s` and `total_s` count from the send, `stall_s` from the last event.

    `drain_s`: how long answers may still take after the last send. What passes one is UNFINISHED,
    but a connection that cannot be opened FAILED.
    """

    connect_s: float = 10.0
    first_token_s: float = 300.0
    stall_s: float = 60.0
    total_s: float = 900.0
    drain_s: float = 120.0


class ClientPlan(msgspec.Struct, frozen=True):
    """One run's client.

    A p99 lateness above `lateness_limit_s` makes the run invalid, and so does a request that was
    not sent since `max_outstanding` others were out. `spare_connections` are kept open ahead.
    `label` is what progress calls the run. A None of `probe_rps` or `sample_interval_s` switches
    probes or samples off; samples are asked of `sampled` where that is not the target itself.
    """

    target: Target
    endpoint: Endpoint = Endpoint.GENERATE
    model: str = ""
    timeouts: Timeouts = Timeouts()
    lateness_limit_s: float = 0.05
    max_outstanding: int = 4096
    spare_connections: int = 8
    probe_rps: float | None = 1.0
    sample_interval_s: float | None = 1.0
    sampled: Target | None = None
    temperature: float = 0.0
    headers: Mapping[str, str] = {}
    label: str = "load"

    def __post_init__(self) -> None:
        for name, seconds in msgspec.structs.asdict(self.timeouts).items():
            _require_positive(f"timeouts.{name}", seconds)
        _require_positive("lateness_limit_ms", self.lateness_limit_s * 1e3)
        _require_positive("max_outstanding", self.max_outstanding)
        if self.probe_rps is not None and not 0 < self.probe_rps <= MAX_PROBE_RPS:
            raise ConfigError(
                f"client.probe_rps {self.probe_rps:g}, allowed: 0 for no probes, or at most "
                f"{MAX_PROBE_RPS:g}; change it"
            )
        interval_s = self.sample_interval_s
        if interval_s is not None and interval_s < MIN_SAMPLE_INTERVAL_S:
            raise ConfigError(
                f"client.sample_interval_s {interval_s:g}, allowed: at least "
                f"{MIN_SAMPLE_INTERVAL_S:g}, 0 for no samples; change it"
            )
        if self.temperature < 0:
            raise ConfigError(f"temperature {self.temperature:g}, allowed: 0 and above; change it")
        if self.endpoint is not Endpoint.GENERATE and not self.model:
            raise ConfigError(
                f"endpoint {self.endpoint} wants a model: name one of those that the server lists "
                "under /v1/models"
            )
        render_headers(self.headers)


def _require_positive(name: str, value: float) -> None:
    # The comparison is also false for a value that is no number.
    if not value > 0:
        raise ConfigError(f"client.{name} {value:g}, allowed: above 0; change it")
