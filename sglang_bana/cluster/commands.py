"""The exact command of every process: arguments, added environment, inherited descriptors.

No secret is on a command line or in an environment; each process reads its own 0600 file.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from urllib.request import getproxies_environment

import msgspec

from sglang_bana.cluster.placement import Placement, Share, format_binding
from sglang_bana.cluster.run_dir import RunDir
from sglang_bana.cluster.sglang_args import has_option
from sglang_bana.config import (
    INSTANCE_ENV,
    BanaConfig,
    InstanceSpec,
    StoreSpec,
    UpstreamSpec,
)
from sglang_bana.config_keys import SETTINGS

FRONT_DOOR = "front-door"
STORE = "store"
# SGLang gives a KV pool most of the memory that it finds free. Instances that share one machine's
# memory would each take it, so on cores they get this much of it together, and a bounded pool.
CPU_MEMORY_FRACTION = 0.8
CPU_POOL_TOKENS = 65_536
# What a model is computed in where cores are slow with the 16 bits that it is stored in.
WIDE_DTYPE = "float32"
# The front door's probes would fill an instance's log.
QUIET_PATHS = ("--uvicorn-access-log-exclude-prefixes", "/ready", "/health")


class Programs(msgspec.Struct, frozen=True):
    """What is run for an instance, the front door, the store; arguments are appended."""

    instance: tuple[str, ...] = (sys.executable, "-P", "-m", "sglang_bana.engine.serve")
    front_door: tuple[str, ...] = (sys.executable, "-P", "-m", "sglang_bana.router.main")
    store: tuple[str, ...] = (sys.executable, "-P", "-m", "sglang_bana.store.main")


class Command(msgspec.Struct, frozen=True):
    """One process: `env` is added to the launcher's own, `cores` empty means any core."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = {}
    cores: tuple[int, ...] = ()
    pass_fds: tuple[int, ...] = ()

    def format_line(self) -> str:
        """The same as one line for a shell."""
        pairs = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.env.items())]
        return " ".join([*pairs, shlex.join(self.argv)])


class InstanceSite(msgspec.Struct, frozen=True):
    """Where one instance lives: its name, share of the machine, and ports."""

    name: str
    share: Share
    port: int
    rendezvous_port: int

    @property
    def url(self) -> str:
        """Where its HTTP server answers."""
        return f"http://127.0.0.1:{self.port}"


class Blueprint(msgspec.Struct, frozen=True):
    """All that the commands of a run follow from.

    `slow_half`: cores compute with 16 bits several times slower than with 32.
    """

    config: BanaConfig
    model: str
    placement: Placement
    sites: tuple[InstanceSite, ...]
    attached: tuple[UpstreamSpec, ...]
    listen_fd: int
    programs: Programs = Programs()
    slow_half: bool = False


def build_instance(blueprint: Blueprint, site: InstanceSite, run_dir: RunDir) -> Command:
    """How the instance at `site` is started."""
    return Command(
        name=site.name,
        argv=(*blueprint.programs.instance, *_instance_args(blueprint, site)),
        env=_instance_env(blueprint, site, run_dir),
        cores=site.share.all_cores,
    )


def build_front_door(blueprint: Blueprint, run_dir: RunDir) -> Command:
    """How the front door is started; it inherits the listening socket."""
    spec = str(run_dir.spec_file(FRONT_DOOR))
    return Command(
        name=FRONT_DOOR,
        argv=(*blueprint.programs.front_door, spec),
        env={"PYTHONUNBUFFERED": "1"},
        pass_fds=(blueprint.listen_fd,),
    )


def build_store(blueprint: Blueprint, run_dir: RunDir) -> Command:
    """How the store's daemon is started."""
    return Command(
        name=STORE,
        argv=(*blueprint.programs.store, str(run_dir.spec_file(STORE))),
        env={"PYTHONUNBUFFERED": "1"},
    )


def build_store_spec(blueprint: Blueprint, run_dir: RunDir, secret: str) -> StoreSpec:
    """What the store's daemon reads from its file."""
    return StoreSpec(
        store=blueprint.config.store,
        endpoint=run_dir.store_endpoint,
        arena_path=str(run_dir.arena_file),
        secret=secret,
        parent_pid=os.getpid(),
        # It ends before it would be killed.
        stop_timeout_s=blueprint.config.supervisor.stop_timeout_s / 2,
    )


def build_instance_spec(
    blueprint: Blueprint, site: InstanceSite, run_dir: RunDir, secret: str
) -> InstanceSpec:
    """What the instance reads from its file. A machine placed on cores runs on cores."""
    force_cpu = blueprint.placement.on_cpu or blueprint.config.engine.force_cpu
    return InstanceSpec(
        name=site.name,
        engine=msgspec.structs.replace(blueprint.config.engine, force_cpu=force_cpu),
        secret=secret,
        load_endpoint=run_dir.load_endpoint(site.name),
        parent_pid=os.getpid(),
        run_dir=str(run_dir.root),
        scheduling=blueprint.config.scheduling,
        slo=blueprint.config.slo,
        store_endpoint=run_dir.store_endpoint if blueprint.config.store.enabled else "",
        store_salt=blueprint.config.store.salt,
        restore=blueprint.config.store.restore,
        restore_options=blueprint.config.store.restore_options,
        handoff_tokens=blueprint.config.handoff.min_prompt_tokens,
    )


def build_upstreams(blueprint: Blueprint, run_dir: RunDir, secret: str) -> tuple[UpstreamSpec, ...]:
    """Every instance as the front door sees it: our own, or the attached ones."""
    # Where servers are attached there are no sites.
    own = tuple(
        UpstreamSpec(
            name=site.name,
            url=site.url,
            load_endpoint=run_dir.load_endpoint(site.name),
            secret=secret,
            role=role,
        )
        for site, role in zip(blueprint.sites, blueprint.config.launch.roles(), strict=False)
    )
    return own + blueprint.attached


def list_commands(blueprint: Blueprint, run_dir: RunDir) -> tuple[Command, ...]:
    """The commands in the order of their start."""
    own = tuple(build_instance(blueprint, site, run_dir) for site in blueprint.sites)
    store = (build_store(blueprint, run_dir),) if blueprint.config.store.enabled else ()
    return (*store, *own, build_front_door(blueprint, run_dir))


def inherit_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The launcher's environment without bana's settings, which the specs carry."""
    settings = {setting.env_name for setting in SETTINGS.values()}
    return {name: value for name, value in environ.items() if name not in settings}


def bypass_proxy() -> dict[str, str]:
    """What keeps SGLang's requests to itself from going to the environment's proxy."""
    proxies = getproxies_environment()
    excepted = proxies.pop("no", "")
    if not proxies or excepted == "*":
        return {}
    excepted = f"{excepted},127.0.0.1" if excepted else "127.0.0.1"
    return {"no_proxy": excepted, "NO_PROXY": excepted}


def _instance_args(blueprint: Blueprint, site: InstanceSite) -> list[str]:
    own = ["--model-path", blueprint.model, "--host", "127.0.0.1", "--port", str(site.port)]
    own += ["--nccl-port", str(site.rendezvous_port)]
    given = list(blueprint.config.launch.sglang_args)
    if not has_option(given, "--sleep-on-idle"):
        own.append("--sleep-on-idle")
    if not has_option(given, QUIET_PATHS[0]):
        own += QUIET_PATHS
    if blueprint.placement.on_cpu:
        own += _limit_memory(blueprint, given)
        if blueprint.slow_half and not has_option(given, "--dtype"):
            own += ["--dtype", WIDE_DTYPE]
    name = blueprint.config.launch.model
    is_renamed = name not in (None, blueprint.model)
    if is_renamed and not has_option(given, "--served-model-name"):
        own += ["--served-model-name", str(name)]
    return own + given


def _limit_memory(blueprint: Blueprint, given: list[str]) -> list[str]:
    """The pool's limits that the user has not set."""
    workers = sum(len(share.cores) for share in blueprint.placement.shares)
    limits = {
        "--mem-fraction-static": f"{CPU_MEMORY_FRACTION / workers:.3f}",
        "--max-total-tokens": str(CPU_POOL_TOKENS),
    }
    return [
        word
        for option, value in limits.items()
        if not has_option(given, option)
        for word in (option, value)
    ]


def _instance_env(blueprint: Blueprint, site: InstanceSite, run_dir: RunDir) -> dict[str, str]:
    env = {INSTANCE_ENV: str(run_dir.spec_file(site.name)), "PYTHONUNBUFFERED": "1"}
    env |= bypass_proxy()
    if os.path.isdir(blueprint.model):
        # A local model needs no hub; whoever names an adapter of the hub sets these to 0.
        offline = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
        env |= {name: os.environ.get(name, "1") for name in offline}
    if not blueprint.placement.on_cpu:
        return env | {"CUDA_VISIBLE_DEVICES": ",".join(site.share.gpus)}
    # A waiting OpenMP team that spins takes the core from the instance that works.
    return env | {
        "CUDA_VISIBLE_DEVICES": "",
        "SGLANG_CPU_OMP_THREADS_BIND": format_binding(site.share),
        "OMP_NUM_THREADS": str(len(site.share.cores[0])),
        "OMP_WAIT_POLICY": "PASSIVE",
    }
