"""The one frozen configuration of a cluster: sections, defaults and bounds.

Where a value came from (flag, environment, file, default) is decided in `config_sources`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec

from bana.radix_global.reader.policies import DEFAULT_READER
from bana.radix_global.writer.placement import DEFAULT_PLACEMENT
from bana.slo.admission import DEFAULT_ADMISSION
from bana.slo.errors import ConfigError
from bana.slo.governor import DEFAULT_GOVERNOR
from bana.slo.limits import ClassName, SloClass, SloRange, SloRules
from bana.slo.order import DEFAULT_ORDER
from bana.slo.restore import DEFAULT_RESTORE
from bana.slo.roles import Role
from bana.slo.routing import DEFAULT_ROUTING

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class SchedulerKind(StrEnum):
    """`stock` keeps SGLang's own scheduler class: the baseline of every comparison."""

    BANA = "bana"
    STOCK = "stock"


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of bana.toml; unknown keys are refused."""


class LaunchConfig(Section, frozen=True):
    """What to start. Port 0 takes a free one. An empty `run_dir` picks a private new folder.

    `prefill`, `decode` and `both` say how many instances begin in which role, and with that how
    many there are; without them `instances`, or one, are all there for both.
    `upstreams` are running servers to attach instead of starting any; `upstream_keys_file` holds
    their keys: one bare key for all of them, or lines `URL KEY`.
    """

    model: Name | None = None
    instances: Annotated[int, msgspec.Meta(ge=1, le=256)] | None = None
    prefill: Annotated[int, msgspec.Meta(ge=0, le=256)] = 0
    decode: Annotated[int, msgspec.Meta(ge=0, le=256)] = 0
    both: Annotated[int, msgspec.Meta(ge=0, le=256)] = 0
    host: Name = "127.0.0.1"
    port: Port = 8000
    run_dir: str = ""
    upstreams: tuple[Name, ...] = ()
    upstream_keys_file: str = ""
    sglang_args: tuple[str, ...] = ()

    def roles(self) -> tuple[Role, ...]:
        """The role that each instance begins with; as many as there are instances."""
        named = self.prefill * (Role.PREFILL,) + self.decode * (Role.DECODE,)
        return (named + self.both * (Role.BOTH,)) or (self.instances or 1) * (Role.BOTH,)


class EngineConfig(Section, frozen=True):
    """How instances run. `attention_backend` is the CPU platform's; GPUs keep SGLang's choice."""

    scheduler: SchedulerKind = SchedulerKind.BANA
    attention_backend: Name = "bana_cpu"
    force_cpu: bool = False
    report_interval_s: Annotated[float, msgspec.Meta(ge=0.02, le=10)] = 0.1


# The name that leaves a question of the engine to SGLang.
STOCK = "stock"


class SchedulingConfig(Section, frozen=True):
    """Which policies decide in an instance's queue; `stock` leaves a question to SGLang.

    `head_rows` is how much of the queue is put in order at a time, `max_started` how many
    prompts may wait half computed. `decision_log_bytes` bounds the log of decisions that each
    instance writes into the run directory; 0 writes none. `report_outcome` tells clients in
    `meta_info` what became of their budget.
    """

    order: Name = DEFAULT_ORDER
    order_options: Mapping[str, object] = {}
    governor: Name = DEFAULT_GOVERNOR
    governor_options: Mapping[str, object] = {}
    admission: Name = DEFAULT_ADMISSION
    admission_options: Mapping[str, object] = {}
    head_rows: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 64
    max_started: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 16
    seed: int = 0
    decision_log_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**36)] = 0
    report_outcome: bool = False

    @property
    def is_stock(self) -> bool:
        """Whether SGLang decides everything, and requests need no budgets in the engine."""
        return self.order == self.governor == STOCK and self.admission == DEFAULT_ADMISSION


class RoutingConfig(Section, frozen=True):
    """Which routing policy, with its options, and the seed of its random numbers."""

    policy: Name = DEFAULT_ROUTING
    options: Mapping[str, object] = {}
    seed: int = 0
    prefix_index_pages: Annotated[int, msgspec.Meta(ge=1, le=50_000_000)] = 500_000


class HandoffConfig(Section, frozen=True):
    """Prompts computed on one instance and decoded on another, where roles and a store exist.

    Prompts shorter than `min_prompt_tokens`, as the front door estimates them, stay together.
    """

    enabled: bool = True
    min_prompt_tokens: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] = 256


class SloConfig(Section, frozen=True):
    """SLO classes, their default and the range that clients may ask for."""

    default_class: Name = "standard"
    classes: Mapping[ClassName, SloClass] = msgspec.field(
        default_factory=lambda: {
            "interactive": SloClass(rank=2, ttft_ms=2_000, tpot_ms=100),
            "standard": SloClass(rank=1, ttft_ms=10_000, tpot_ms=250),
            "batch": SloClass(rank=0, ttft_ms=120_000, tpot_ms=2_000),
        }
    )
    allowed: SloRange = SloRange()

    def rules(self) -> SloRules:
        """The same as the record that slo/limits decides with; ConfigError when inconsistent."""
        return SloRules(self.default_class, self.classes, self.allowed)


class LimitsConfig(Section, frozen=True):
    """Bounds of the front door. Past `max_requests` in flight the answer is a prompt 429.

    An instance gets at most `max_unanswered_per_instance` of them that it has not begun to answer;
    the others wait in the front door for the first that has room. Those that come right after its
    start wait up to `start_wait_s` for what the instances say of themselves. Past `max_connections`
    or what the files that the process may open allow, the answer is a 503. A body may stand still
    for `body_timeout_s` and take `stall_timeout_s` in all.
    """

    max_requests: Count = 4096
    max_unanswered_per_instance: Count = 1024
    max_connections: Count = 16_384
    max_body_bytes: Annotated[int, msgspec.Meta(ge=1024, le=2**31)] = 64 * 2**20
    start_wait_s: Seconds = 2.0
    connect_timeout_s: Seconds = 5.0
    body_timeout_s: Seconds = 30.0
    first_byte_timeout_s: Seconds = 3600.0
    stall_timeout_s: Seconds = 300.0
    retry_after_s: Seconds = 1.0
    drain_timeout_s: Seconds = 30.0
    sticky_entries: Count = 100_000


class AuthConfig(Section, frozen=True):
    """Who may call. `keys_file` holds hashed keys, each with an optional fixed SLO class."""

    api_key: str = ""
    admin_api_key: str = ""
    keys_file: str = ""


class TierKind(StrEnum):
    """`directory` is a folder on a disk or a mounted file system, `memory` the daemon's own.

    `mooncake` is a pool of other processes' memory, which Mooncake's master keeps account of.
    """

    DIRECTORY = "directory"
    MEMORY = "memory"
    MOONCAKE = "mooncake"


class StoreTierConfig(Section, frozen=True):
    """One tier of the store. `capacity_bytes` bounds it, `width` is how many reads run at once.

    `options` are those of a DirectoryStore or the MooncakeOptions; `throttle` and `faults` make a
    tier slow or faulty, for tests, `faults` in the same way each time where they have a `seed`. An
    empty `name` takes the kind's and the tier's number.
    """

    kind: TierKind = TierKind.DIRECTORY
    path: str = ""
    capacity_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**50)] = 64 * 2**30
    width: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    name: Annotated[str, msgspec.Meta(max_length=64)] = ""
    options: Mapping[str, object] = {}
    throttle: Mapping[str, float] = {}
    faults: Mapping[str, float] = {}


Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class StoreConfig(Section, frozen=True):
    """The store of KV pages that all instances of this host share.

    `arena_bytes` 0 takes a tenth of the free memory, `slot_bytes` 0 the size of the first
    instance's pages, `index_pages` 0 what the tiers and the arena can hold. Only instances with the
    same `salt` read each other's pages. `tiers` are looked for changes of others every `refresh_s`.
    `restore` is the policy that fetches or recomputes (`slo/restore`); `writer_options` say how
    long writes give way to reads (`writer/options.WriterOptions`).
    One instance has at most `reserved_pages` slots to write into; the shares, of the arena, bound
    what one instance leases, all reserve, is being read or written, and is pinned.
    """

    enabled: bool = False
    arena_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**44)] = 0
    slot_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    index_pages: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 2)] = 0
    tiers: Annotated[tuple[StoreTierConfig, ...], msgspec.Meta(max_length=7)] = ()
    reader: Name = DEFAULT_READER
    reader_options: Mapping[str, object] = {}
    placement: Name = DEFAULT_PLACEMENT
    placement_options: Mapping[str, object] = {}
    writer_options: Mapping[str, object] = {}
    restore: Name = DEFAULT_RESTORE
    restore_options: Mapping[str, object] = {}
    refresh_s: Seconds = 5.0
    salt: Annotated[str, msgspec.Meta(max_length=256)] = ""
    max_owners: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 256
    max_wants: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 4096
    reserved_pages: Annotated[int, msgspec.Meta(ge=1, le=16_384)] = 1024
    leased_share: Share = 0.75
    reserved_share: Share = 0.25
    reading_share: Share = 0.5
    writing_share: Share = 0.5
    pinned_share: Share = 0.5


class SupervisorConfig(Section, frozen=True):
    """When a process counts as up, stalled or beyond help.

    An instance whose load reports, or answers where it sends no reports, are older than
    `suspect_after_s` gets no new work; one of which either sign is missing for `kill_after_s` is
    killed and restarted. A process that ends more than `max_restarts` times within
    `restart_window_s`, or `max_start_failures` times in a row before it was ever up, is given up.
    Of a process's log, the newest `log_max_bytes` are kept.
    """

    start_timeout_s: Seconds = 900.0
    suspect_after_s: Seconds = 5.0
    kill_after_s: Seconds = 120.0
    max_restarts: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 5
    max_start_failures: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 2
    restart_window_s: Seconds = 600.0
    backoff_initial_s: Seconds = 0.5
    backoff_max_s: Seconds = 30.0
    stop_timeout_s: Seconds = 15.0
    log_max_bytes: Annotated[int, msgspec.Meta(ge=65_536, le=2**34)] = 64 * 2**20


class BanaConfig(Section, frozen=True):
    """Everything that a cluster is started with."""

    launch: LaunchConfig = LaunchConfig()
    engine: EngineConfig = EngineConfig()
    scheduling: SchedulingConfig = SchedulingConfig()
    routing: RoutingConfig = RoutingConfig()
    handoff: HandoffConfig = HandoffConfig()
    slo: SloConfig = msgspec.field(default_factory=SloConfig)
    limits: LimitsConfig = LimitsConfig()
    auth: AuthConfig = AuthConfig()
    supervisor: SupervisorConfig = SupervisorConfig()
    store: StoreConfig = StoreConfig()


class UpstreamSpec(Section, frozen=True):
    """One instance as the front door sees it.

    `load_endpoint` is the ZMQ address of its load reports; empty for an attached server, whose
    `/v1/loads` is polled instead. `local` says that it shares this host's monotonic clock. `role`
    is the one that it begins with.
    """

    name: Name
    url: Name
    load_endpoint: str = ""
    local: bool = True
    secret: str = ""
    role: Role = Role.BOTH


class FrontDoorSpec(Section, frozen=True):
    """What the launcher hands to the front door process, in a 0600 file.

    `listen_fd` is the inherited listening socket, which outlives a restart of the front door.
    `store_endpoint` is where the store's daemon listens, empty where there is none.
    """

    config: BanaConfig
    upstreams: tuple[UpstreamSpec, ...]
    listen_fd: int
    run_dir: str
    parent_pid: int
    control_key: str
    store_endpoint: str = ""


class InstanceSpec(Section, frozen=True):
    """What the launcher hands to an instance process: the file that BANA_INSTANCE names (0600).

    `store_endpoint` is where the store's daemon listens, empty where there is none. Only instances
    with the same `store_salt` read each other's pages; `restore` decides what is fetched. Where the
    device has a prompt's beginning and lacks fewer than `handoff_tokens` of it, no other instance
    is waited for to compute them.
    """

    name: Name
    engine: EngineConfig
    secret: Name
    load_endpoint: Name
    parent_pid: int
    run_dir: str
    scheduling: SchedulingConfig = SchedulingConfig()
    slo: SloConfig = msgspec.field(default_factory=SloConfig)
    store_endpoint: str = ""
    store_salt: str = ""
    restore: Name = DEFAULT_RESTORE
    restore_options: Mapping[str, object] = {}
    handoff_tokens: int = 0


class StoreSpec(Section, frozen=True):
    """What a store daemon reads from its 0600 file; `parent_pid` 0 is tied to nobody.

    `secret` is the admin key, `arena_path` where its memory has a name while it lives.
    """

    store: StoreConfig
    endpoint: Name
    arena_path: Name
    secret: Name
    parent_pid: int
    stop_timeout_s: Seconds


INSTANCE_ENV = "BANA_INSTANCE"
# In the run directory: what instances are there for, once that was changed.
ROLES_NAME = "roles.json"


def expand_home(name: str) -> Path:
    """`name` as a path with `~` expanded; ConfigError when that user has no home."""
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"no home directory for the `~` in {name!r}; give the whole path"
        ) from error


def write_private(path: Path, record: msgspec.Struct) -> None:
    """Write `record` as JSON that only this user may read, atomically."""
    pending = path.with_name(path.name + ".pending")
    pending.unlink(missing_ok=True)
    fd = os.open(pending, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.encode(record))
    pending.replace(path)
