"""What a running cluster says about itself: `/bana/status` and the run's state file."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from bana.radix_global.admin_messages import StoreReport
from bana.slo.roles import Role
from bana.slo.wire import EngineProof, LinkReport, SchedulingReport


class InstanceState(StrEnum):
    """Where an instance stands, as the front door sees it.

    starting ──ready──▶ up ◀──silent / heard again──▶ suspect
        ▲                └──connection refused──▶ down ◀──┘
        └──────────── it answers again ────────────┘
    """

    STARTING = "starting"
    UP = "up"
    SUSPECT = "suspect"
    DOWN = "down"


class InstanceStatus(msgspec.Struct, frozen=True):
    """One instance: the front door's belief beside what the engine last published.

    `silent_s` is the age of its last sign of life, None before the first; `trouble` why its last
    probe found that it takes no work, None when it does.
    """

    name: str
    url: str
    state: InstanceState
    silent_s: float | None
    in_flight: int
    prefill_tokens: int
    decode_requests: int
    waiting_requests: int
    dispatched_total: int
    failures_total: int
    engine_running_requests: int | None = None
    engine_waiting_requests: int | None = None
    used_tokens: int | None = None
    capacity_tokens: int | None = None
    proof: EngineProof | None = None
    scheduling: SchedulingReport | None = None
    link: LinkReport | None = None
    trouble: str | None = None
    role: Role = Role.BOTH


class StoreStatus(msgspec.Struct, frozen=True):
    """The store's daemon: what it last said of itself, `silent_s` ago."""

    silent_s: float
    report: StoreReport


class RoleTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What instances are there for: the body of `/bana/roles`, and its answer."""

    roles: dict[str, Role]


class HandoffStatus(msgspec.Struct, frozen=True):
    """How many prompts were given to another instance, how those ended, and why others were not.

    `outcomes` are of the prompts: done, refused, failed, or dropped with their request.
    """

    sent: int
    outcomes: Mapping[str, int]
    skipped: Mapping[str, int]


class FrontDoorStatus(msgspec.Struct, frozen=True):
    """The answer of `GET /bana/status`. `warnings`: what does not work as configured.

    `store` is None where there is none, or it has not answered yet; `handoff` where there is none.
    Of the requests in flight, `waiting` are in the front door, because all instances are full.
    """

    version: str
    pid: int
    uptime_s: float
    is_ready: bool
    is_draining: bool
    in_flight: int
    max_requests: int
    routing_policy: str
    instances: tuple[InstanceStatus, ...]
    warnings: tuple[str, ...] = ()
    waiting: int = 0
    store: StoreStatus | None = None
    handoff: HandoffStatus | None = None


class ProcessState(msgspec.Struct, frozen=True):
    """One process that the launcher keeps alive. `is_given_up`: past its restart bound."""

    name: str
    pid: int | None
    restarts: int
    is_given_up: bool
    log: str
    last_error: str | None = None


class RunState(msgspec.Struct, frozen=True):
    """The run directory's `state.json`: who runs this cluster, and where it answers.

    `started_ticks` is the launcher's start time in clock ticks since boot (field 22 of
    /proc/PID/stat), so that a reused pid is never mistaken for it. `warnings` are what the user
    was told at the start and should not forget.
    """

    version: str
    pid: int
    started_ticks: int
    url: str
    model: str
    phase: str
    processes: tuple[ProcessState, ...]
    warnings: tuple[str, ...] = ()
