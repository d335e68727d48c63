"""What the SGLang arguments after `--` say about ranks, and which of them bana keeps for itself."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bana.slo.errors import ConfigError

_PORTS = "bana chooses a free port for each instance"
_GPUS = "bana gives each instance its GPUs; set CUDA_VISIBLE_DEVICES to choose among them"
_HOSTS = "an instance lives on one machine; attach servers elsewhere with --upstream"

# The option, and what to do instead.
OWNED = {
    "--host": "use bana's own --host, before the `--`",
    "--port": "use bana's own --port, before the `--`",
    "--api-key": "use bana's own --api-key, before the `--`",
    "--admin-api-key": "use bana's own --admin-api-key, before the `--`",
    "--model-path": "use bana's own --model, before the `--`",
    "--model": "use bana's own --model, before the `--`",
    "--config": "write the arguments after `--` or into launch.sglang_args of bana.toml",
    "--device": "use --set engine.force_cpu=true to run on the CPU",
    "--nccl-port": _PORTS,
    "--dist-init-addr": _PORTS,
    "--nccl-init-addr": _PORTS,
    "--base-gpu-id": _GPUS,
    "--gpu-id-step": _GPUS,
    "--nnodes": _HOSTS,
    "--node-rank": _HOSTS,
}
_TENSOR = ("--tp-size", "--tensor-parallel-size")
_PIPELINE = ("--pp-size", "--pipeline-parallel-size")
# argparse completes the beginning of an option; shorter ones of these are ambiguous in SGLang.
_SHORTEST = 4


class Ranks(msgspec.Struct, frozen=True):
    """How many worker processes one instance has."""

    tensor: int = 1
    pipeline: int = 1

    @property
    def count(self) -> int:
        """All of them; each needs its own GPU or cores."""
        return self.tensor * self.pipeline


def check_sglang_args(args: Sequence[str]) -> None:
    """ConfigError at the first argument that bana sets itself, abbreviated or not."""
    if args and not args[0].startswith("-"):
        raise ConfigError(
            f"unexpected argument {args[0]!r}; SGLang's arguments go after `--` and begin with '-'"
        )
    for arg in args:
        name = arg.partition("=")[0]
        owner = _find_owned(name)
        if owner is not None:
            raise ConfigError(f"SGLang's {name} cannot be given after `--`: {OWNED[owner]}")


def read_ranks(args: Sequence[str]) -> Ranks:
    """The tensor and pipeline sizes among `args`; the last one counts, as in argparse."""
    return Ranks(_read_size(args, _TENSOR), _read_size(args, _PIPELINE))


def has_option(args: Sequence[str], option: str) -> bool:
    """Whether `option` is among `args`, as one word or with its value."""
    return any(arg == option or arg.startswith(f"{option}=") for arg in args)


def read_option(args: Sequence[str], option: str) -> str | None:
    """The value of `option` among `args`, written out in full; the last one counts."""
    found = None
    for index, word in enumerate(args):
        if word == option:
            found = args[index + 1] if index + 1 < len(args) else ""
        elif word.startswith(f"{option}="):
            found = word.partition("=")[2]
    return found


def _find_owned(name: str) -> str | None:
    if not name.startswith("--") or name == "--":
        return None
    if name in OWNED:
        return name
    # argparse completes the beginning of an option, so `--hos 0.0.0.0` would pass as --host.
    return next((option for option in OWNED if option.startswith(name) and len(name) > 3), None)


def _read_size(args: Sequence[str], names: Sequence[str]) -> int:
    size = "1"
    for index, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if len(name) < _SHORTEST or not any(option.startswith(name) for option in names):
            continue
        if not equals and index + 1 == len(args):
            raise ConfigError(f"SGLang's {name} needs a value, for example `{name} 2`")
        size = value if equals else args[index + 1]
    if not size.isdecimal() or not 1 <= int(size) <= 1024:
        raise ConfigError(f"SGLang's {names[0]} {size!r} must be a whole number from 1 to 1024")
    return int(size)
