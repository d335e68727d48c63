"""What is refused, or warned of, before anything is started."""

from __future__ import annotations

import difflib
import os
import resource
from pathlib import Path

import psutil

from bana.slo.errors import ConfigError
from bana.slo.roles import Role, Work, suits
from sglang_bana.cluster.binding import is_loopback
from sglang_bana.cluster.model_size import ModelSize, measure_weights
from sglang_bana.cluster.models import EMBEDDED_MODELS
from sglang_bana.cluster.placement import Demand
from sglang_bana.cluster.sglang_args import check_sglang_args
from sglang_bana.config import BanaConfig, expand_home

# An SGLang server without its weights and KV cache: three processes that have imported torch.
INSTANCE_BYTES = 2 << 30
# Each rank beyond the first is one more such process.
RANK_BYTES = INSTANCE_BYTES // 3
CGROUP = Path("/sys/fs/cgroup")
FILES_PER_REQUEST = 2
SPARE_FILES = 256
_WORDS = {Work.PROMPT: "computing prompts", Work.ANSWER: "decoding answers"}


def check_launch(config: BanaConfig) -> None:
    """ConfigError at the first thing that keeps this configuration from being launched."""
    launch = config.launch
    if launch.model is None and not launch.upstreams:
        raise ConfigError("nothing to launch: name a model with --model (for example smollm2)")
    if launch.model is not None and launch.upstreams:
        raise ConfigError(
            f"--model {launch.model} and --upstream {launch.upstreams[0]} exclude each other: "
            "start instances or attach running servers"
        )
    if launch.upstreams and (len(launch.roles()) != 1 or launch.sglang_args):
        raise ConfigError(
            f"--upstream {launch.upstreams[0]} attaches a running server, while --instances, roles "
            "and what follows -- belong to --model; leave one of both out"
        )
    if launch.upstream_keys_file and not launch.upstreams:
        raise ConfigError(
            f"--upstream-key-file {launch.upstream_keys_file} is for attached servers; add "
            "--upstream URL, or leave it out"
        )
    if launch.upstreams and config.store.enabled:
        raise ConfigError(
            "store.enabled=true needs instances of bana's own, and --upstream attaches running "
            "servers; leave one of them out"
        )
    check_sglang_args(launch.sglang_args)
    _check_roles(config)
    _check_exposure(config)


def check_model(name: str) -> str:
    """`name` with `~` expanded; ConfigError when it is meant as a folder that is none."""
    path = expand_home(name)
    looks_local = name.startswith(("/", "./", "../", "~")) or name in (".", "..")
    if not os.path.exists(path):
        if looks_local:
            raise ConfigError(f"unknown model {name!r}: there is no such folder; correct --model")
        return name
    if path.is_dir() and not looks_local and name in EMBEDDED_MODELS:
        return name
    has_config = path.is_file() or (path / "config.json").is_file()
    if not has_config:
        raise ConfigError(
            f"unknown model {name!r}: the folder has no config.json; allowed: a Hugging Face "
            f"folder or repository, or {', '.join(sorted(EMBEDDED_MODELS))}"
        )
    return str(path)


def describe_model_doubt(name: str) -> str | None:
    """A remark when `name` looks like a misspelt embedded model."""
    if name in EMBEDDED_MODELS or os.path.exists(name):
        return None
    near = difflib.get_close_matches(name, EMBEDDED_MODELS, n=1, cutoff=0.75)
    if not near:
        return None
    return (
        f"{name!r} is neither a folder nor embedded (did you mean {near[0]!r}?): "
        "SGLang looks for it on Hugging Face"
    )


def check_memory(model: str, size: ModelSize, demand: Demand) -> None:
    """ConfigError when instances on the CPU cannot fit into the memory that is free."""
    needed = estimate_memory(demand) + demand.instances * size.weight_bytes
    free = available_bytes()
    if needed <= free:
        return
    ranks, step = "", "start fewer --instances"
    if demand.ranks > 1:
        ranks, step = f" of {demand.ranks} ranks", f"{step}, or lower SGLang's --tp-size"
    stored_bytes = measure_weights(model)
    widened = ""
    if stored_bytes and size.weight_bytes > stored_bytes:
        ratio = size.weight_bytes / stored_bytes
        widened = f" (--dtype makes the weights {ratio:g} times as large as they are stored)"
    raise ConfigError(
        f"{demand.instances} instances{ranks} of {model} need at least {needed / 2**30:.1f} GiB of "
        f"memory{widened}, free are {free / 2**30:.1f} GiB; {step}"
    )


def describe_pool_doubt(size: ModelSize, demand: Demand, pool_tokens: int) -> str | None:
    """A remark when the KV pools that instances on the CPU may take do not fit beside the rest."""
    if not size.kv_bytes_per_token:
        return None
    pools = demand.instances * pool_tokens * size.kv_bytes_per_token
    free = available_bytes() - estimate_memory(demand) - demand.instances * size.weight_bytes
    if pools <= free:
        return None
    return (
        f"KV pools of {pool_tokens} tokens take {pools / 2**30:.1f} GiB, and beside the models "
        f"{free / 2**30:.1f} GiB are left: SGLang makes them smaller; lower its "
        "--max-total-tokens, or start fewer --instances"
    )


def estimate_memory(demand: Demand) -> int:
    """Bytes that the processes of so many instances take, without weights and KV cache."""
    return demand.instances * (INSTANCE_BYTES + (demand.ranks - 1) * RANK_BYTES)


def available_bytes() -> int:
    """Memory that can still be taken here, as the machine and the control group see it."""
    free = int(psutil.virtual_memory().available)
    limit, used = (_read_number(CGROUP / f"memory.{name}") for name in ("max", "current"))
    if limit is None or used is None:
        return free
    return min(free, max(0, limit - used + _count_cached()))


def _count_cached() -> int:
    """Bytes of files that the control group keeps in memory, and gives up when it is short."""
    try:
        lines = (CGROUP / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    fields = dict(line.split() for line in lines)
    return sum(int(fields.get(name, 0)) for name in ("inactive_file", "active_file"))


def raise_open_files(max_requests: int) -> str | None:
    """Raise the soft limit of open files to the hard one; a warning when that is too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max_requests * FILES_PER_REQUEST + SPARE_FILES
    wanted = max(soft, min(needed, hard) if hard != resource.RLIM_INFINITY else needed)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted >= needed:
        return None
    return (
        f"limits.max_requests={max_requests} needs {needed} open files, allowed are {wanted}; "
        "raise `ulimit -Hn` or lower limits.max_requests"
    )


def _check_roles(config: BanaConfig) -> None:
    """Roles that are told at the start add up, leave nothing undone, and have a store between."""
    launch = config.launch
    if not launch.prefill + launch.decode + launch.both:
        return
    roles = launch.roles()
    told = f"--prefill {launch.prefill} --decode {launch.decode} --both {launch.both}"
    if launch.instances not in (None, len(roles)):
        raise ConfigError(
            f"{told} are {len(roles)} instances, and --instances says {launch.instances}; "
            "leave --instances out"
        )
    for work, step in ((Work.PROMPT, "--prefill or --both"), (Work.ANSWER, "--decode or --both")):
        if not any(suits(role, work) for role in roles):
            raise ConfigError(f"{told} leave nobody for {_WORDS[work]}; add 1 to {step}")
    if set(roles) != {Role.BOTH} and not config.store.enabled:
        raise ConfigError(
            f"{told} need a store, through which prompts are handed over; "
            "add --set store.enabled=true, or leave the roles out"
        )


def _check_exposure(config: BanaConfig) -> None:
    auth, host = config.auth, config.launch.host
    if not is_loopback(host) and not (auth.api_key or auth.keys_file):
        raise ConfigError(
            f"--host {host} can be reached from outside and no key is set; "
            "set --api-key or --keys-file, or keep --host 127.0.0.1"
        )
    keys_file = expand_home(auth.keys_file) if auth.keys_file else None
    if keys_file and not (keys_file.is_file() and os.access(keys_file, os.R_OK)):
        raise ConfigError(f"cannot read auth.keys_file {auth.keys_file!r}; name a readable file")


def _read_number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
