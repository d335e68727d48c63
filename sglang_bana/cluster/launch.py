"""`bana launch`: from a configuration to a running cluster, and back to nothing.

check ─▶ model ─▶ placement, ports, listener ─▶ Launch ─▶ dry run: print the commands
                                                    └───▶ run: folder, secrets, supervisor
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version

import msgspec

from sglang_bana.cluster import models
from sglang_bana.cluster.binding import HeldPort, bind_listener, format_url, hold_ports
from sglang_bana.cluster.commands import (
    CPU_POOL_TOKENS,
    FRONT_DOOR,
    STORE,
    WIDE_DTYPE,
    Blueprint,
    Command,
    InstanceSite,
    Programs,
    build_instance_spec,
    build_store_spec,
    build_upstreams,
    list_commands,
)
from sglang_bana.cluster.cpu_kind import is_half_slow
from sglang_bana.cluster.hub import check_hub_model
from sglang_bana.cluster.janitor import Janitor
from sglang_bana.cluster.keeper import Keeper, Post
from sglang_bana.cluster.model_size import ModelSize, measure_model
from sglang_bana.cluster.placement import Demand, Placement, plan_placement, read_machine
from sglang_bana.cluster.preflight import (
    check_launch,
    check_memory,
    check_model,
    describe_model_doubt,
    describe_pool_doubt,
    raise_open_files,
)
from sglang_bana.cluster.procfs import read_start_ticks
from sglang_bana.cluster.progress import Reporter
from sglang_bana.cluster.run_dir import RunDir, choose_run_dir, locate_base, remove_old_runs
from sglang_bana.cluster.sglang_args import has_option, read_option, read_ranks
from sglang_bana.cluster.shutdown import StopRules
from sglang_bana.cluster.supervisor import Orders, Supervisor
from sglang_bana.cluster.upstreams import attach_upstreams
from sglang_bana.config import BanaConfig, FrontDoorSpec, LaunchConfig, UpstreamSpec, write_private
from sglang_bana.leftovers import temporary_folder
from sglang_bana.status import RunState
from sglang_bana.store.sizes import resolve_sizes


class Launch(msgspec.Struct, frozen=True):
    """Everything decided about a launch; nothing of it runs yet."""

    blueprint: Blueprint
    listener: socket.socket
    run_dir: RunDir
    url: str
    warnings: tuple[str, ...]

    @property
    def config(self) -> BanaConfig:
        """What the user wants."""
        return self.blueprint.config


class ModelChoice(msgspec.Struct, frozen=True):
    """What SGLang is told to serve, and a doubt about it that the user should see."""

    path: str
    doubt: str | None = None


def choose_model(launch: LaunchConfig, progress: models.Progress) -> ModelChoice:
    """The model to serve, fetched first where bana embeds it; an empty path without a name."""
    if launch.model is None:
        return ModelChoice("")
    path = models.resolve_model(check_model(launch.model), progress)
    # A download folder of the user's own is a cache that only SGLang knows.
    if not os.path.exists(path) and not has_option(launch.sglang_args, "--download-dir"):
        check_hub_model(path)
    return ModelChoice(path, describe_model_doubt(launch.model))


def foresee_model(name: str | None) -> ModelChoice:
    """What `choose_model` would choose, without fetching anything."""
    if name is None:
        return ModelChoice("")
    if name not in models.EMBEDDED_MODELS:
        return ModelChoice(check_model(name), describe_model_doubt(name))
    model = models.find_embedded(name)
    doubt = None if models.is_cached(name) else f"model {name} is not in the cache yet"
    return ModelChoice(str(models.locate_folder(model, models.locate_cache(os.environ))), doubt)


@contextmanager
def plan_launch(
    config: BanaConfig,
    model: ModelChoice,
    environ: Mapping[str, str],
    programs: Programs | None = None,
) -> Iterator[Launch]:
    """The launch with its listener bound and its ports held, which are released on leaving."""
    with ExitStack() as held:
        placement = _place(config, model, environ)
        if config.store.enabled:
            # Once, so that a store that is restarted is as large as before.
            config = msgspec.structs.replace(config, store=resolve_sizes(config.store))
        attached = attach_upstreams(config.launch.upstreams, config.launch.upstream_keys_file)
        listener = held.enter_context(bind_listener(config.launch.host, config.launch.port))
        ports = hold_ports(2 * len(placement.shares))
        for port in ports:
            held.callback(port.release)
        blueprint = Blueprint(
            config=config,
            model=model.path,
            placement=placement,
            sites=_site(placement, ports),
            attached=attached,
            listen_fd=listener.fileno(),
            programs=programs or Programs(),
            slow_half=is_half_slow(),
        )
        yield Launch(
            blueprint=blueprint,
            listener=listener,
            run_dir=choose_run_dir(config.launch.run_dir, environ),
            url=_reachable_url(listener),
            warnings=_collect_warnings(config, model, placement),
        )


def run_launch(launch: Launch, reporter: Reporter, environ: Mapping[str, str]) -> None:
    """Run the cluster until it is told to stop; ClusterFailed when nothing can serve any more."""
    if not launch.config.launch.run_dir:
        remove_old_runs(locate_base(environ))
    launch.run_dir.create([site.name for site in launch.blueprint.sites])
    try:
        control_key = _leave_orders(launch)
        asyncio.run(_supervise(launch, reporter, control_key))
    finally:
        launch.run_dir.remove_leftovers()
        launch.run_dir.remove_unused()


def place_instances(config: BanaConfig, environ: Mapping[str, str]) -> Placement:
    """Where this configuration's instances go on this machine; ConfigError when they cannot."""
    machine = read_machine(environ)
    if config.engine.force_cpu:
        machine = msgspec.structs.replace(machine, gpus=())
    return plan_placement(machine, read_demand(config))


def read_demand(config: BanaConfig) -> Demand:
    """How many instances are wanted, each of how many ranks."""
    return Demand(len(config.launch.roles()), read_ranks(config.launch.sglang_args).count)


async def _supervise(launch: Launch, reporter: Reporter, control_key: str) -> None:
    janitor = Janitor(launch.run_dir.root)
    commands = list_commands(launch.blueprint, launch.run_dir)
    keepers = {c.name: Keeper(_post(launch, c, janitor, reporter)) for c in commands}
    front_door, store = keepers.pop(FRONT_DOOR), keepers.pop(STORE, None)
    instances = tuple(keepers.values())
    config = launch.config
    orders = Orders(
        identity=_identify(launch),
        run_dir=launch.run_dir,
        listener=launch.listener,
        rules=config.supervisor,
        stop_rules=StopRules(config.limits.drain_timeout_s, config.supervisor.stop_timeout_s),
        control_key=control_key,
        greeting=_greet(launch),
    )
    await Supervisor(orders, front_door, instances, reporter, store).run(janitor)


def _place(config: BanaConfig, model: ModelChoice, environ: Mapping[str, str]) -> Placement:
    check_launch(config)
    launch = config.launch
    if launch.upstreams:
        return Placement((), on_cpu=True)
    placement = place_instances(config, environ)
    if placement.on_cpu:
        check_memory(model.path, _measure(config, model), read_demand(config))
    return placement


def _measure(config: BanaConfig, model: ModelChoice) -> ModelSize:
    """The model as instances on cores serve it."""
    args = config.launch.sglang_args
    own = WIDE_DTYPE if is_half_slow() else "auto"
    return measure_model(model.path, read_option(args, "--dtype") or own, args)


def _site(placement: Placement, ports: Sequence[HeldPort]) -> tuple[InstanceSite, ...]:
    return tuple(
        InstanceSite(f"instance-{i}", share, ports[2 * i].port, ports[2 * i + 1].port)
        for i, share in enumerate(placement.shares)
    )


def _reachable_url(listener: socket.socket) -> str:
    # By address: to resolve a name, the supervisor would need a thread beside its forks.
    host, port = listener.getsockname()[:2]
    return format_url(host, port)


def _collect_warnings(
    config: BanaConfig, model: ModelChoice, placement: Placement
) -> tuple[str, ...]:
    doubts = [model.doubt, raise_open_files(config.limits.max_requests)]
    if placement.on_cpu:
        doubts += [_doubt_cores(config), _doubt_pools(config, model)]
    return (*placement.warnings, *(doubt for doubt in doubts if doubt is not None))


def _doubt_pools(config: BanaConfig, model: ModelChoice) -> str | None:
    if config.launch.upstreams:
        return None
    given = read_option(config.launch.sglang_args, "--max-total-tokens") or ""
    tokens = int(given) if given.isdecimal() else CPU_POOL_TOKENS
    return describe_pool_doubt(_measure(config, model), read_demand(config), tokens)


def _doubt_cores(config: BanaConfig) -> str | None:
    if not is_half_slow() or has_option(config.launch.sglang_args, "--dtype"):
        return None
    return (
        f"these cores are several times slower with 16-bit numbers: models run in {WIDE_DTYPE}; "
        "give SGLang's --dtype after `--` to choose"
    )


def _leave_orders(launch: Launch) -> str:
    """Leave each process its orders; returns the key for the front door's status."""
    try:
        # First, so that a launch that dies now is found and cleared up later.
        launch.run_dir.write_state(_identify(launch))
        return _write_specs(launch)
    except OSError as error:
        launch.run_dir.state_file.unlink(missing_ok=True)
        raise launch.run_dir.explain(error) from error


def _write_specs(launch: Launch) -> str:
    secret, control_key = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    run_dir, blueprint = launch.run_dir, launch.blueprint
    for site in blueprint.sites:
        spec = build_instance_spec(blueprint, site, run_dir, secret)
        write_private(run_dir.spec_file(site.name), spec)
    if launch.config.store.enabled:
        store_spec = build_store_spec(blueprint, run_dir, control_key)
        write_private(run_dir.spec_file(STORE), store_spec)
    write_private(run_dir.spec_file(FRONT_DOOR), _front_door_spec(launch, secret, control_key))
    run_dir.write_key(control_key)
    return control_key


def _front_door_spec(launch: Launch, secret: str, control_key: str) -> FrontDoorSpec:
    upstreams: tuple[UpstreamSpec, ...] = build_upstreams(launch.blueprint, launch.run_dir, secret)
    return FrontDoorSpec(
        config=launch.config,
        upstreams=upstreams,
        listen_fd=launch.blueprint.listen_fd,
        run_dir=str(launch.run_dir.root),
        parent_pid=os.getpid(),
        control_key=control_key,
        store_endpoint=launch.run_dir.store_endpoint if launch.config.store.enabled else "",
    )


def _post(launch: Launch, command: Command, janitor: Janitor, reporter: Reporter) -> Post:
    return Post(
        command=command,
        log=launch.run_dir.log_file(command.name),
        temp_dir=temporary_folder(launch.run_dir.root, command.name),
        rules=launch.config.supervisor,
        janitor=janitor,
        say=reporter.say,
    )


def _identify(launch: Launch) -> RunState:
    return RunState(
        version=version("bana"),
        pid=os.getpid(),
        started_ticks=read_start_ticks(os.getpid()) or 0,
        url=launch.url,
        model=launch.config.launch.model or ", ".join(launch.config.launch.upstreams),
        phase="starting",
        processes=(),
        warnings=launch.warnings,
    )


def _greet(launch: Launch) -> tuple[str, ...]:
    auth = launch.config.auth
    # The one name that `bana demo` and the example programs read as well.
    key = ' -H "Authorization: Bearer $BANA_API_KEY"' if auth.api_key or auth.keys_file else ""
    body = '{"model": "default", "messages": [{"role": "user", "content": "Hello"}]}'
    target = f"{launch.url}/v1/chat/completions{key}"
    curl = f"    curl {target} -H 'Content-Type: application/json' -d '{body}'"
    return (f"ready: {launch.url}", curl)
