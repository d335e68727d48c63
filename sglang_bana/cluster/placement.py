"""Which cores or GPUs each instance gets.

    CPU   cores 0 1 2 3 4 5 6 7   2 instances of 2 ranks:  0-1|2-3   4-5|6-7
    GPU   devices 0 1 2 3         2 instances of 2 ranks:  0,1       2,3

Instances share cores where there are too few, which is allowed but said. The ranks of one instance,
which wait for each other at every step, and GPUs are never shared: too few are refused.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bana.slo.errors import ConfigError


class Machine(msgspec.Struct, frozen=True):
    """What may be used here: cores by number, GPUs as CUDA_VISIBLE_DEVICES names them."""

    cores: tuple[int, ...]
    gpus: tuple[str, ...]


class Share(msgspec.Struct, frozen=True):
    """One instance's part: cores per rank on a CPU, else its GPUs; the other is empty."""

    cores: tuple[tuple[int, ...], ...] = ()
    gpus: tuple[str, ...] = ()

    @property
    def all_cores(self) -> tuple[int, ...]:
        """The cores of all ranks, each once."""
        return tuple(sorted({core for rank in self.cores for core in rank}))


class Placement(msgspec.Struct, frozen=True):
    """A share per instance, and what the user should know about them."""

    shares: tuple[Share, ...]
    on_cpu: bool
    warnings: tuple[str, ...] = ()


class Demand(msgspec.Struct, frozen=True):
    """How many instances, each of how many ranks."""

    instances: int
    ranks: int


def read_machine(environ: Mapping[str, str]) -> Machine:
    """The cores this process may use, and the GPUs that NVML and CUDA_VISIBLE_DEVICES leave."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    return Machine(cores, select_visible(count_gpus(), environ.get("CUDA_VISIBLE_DEVICES")))


def count_gpus() -> int:
    """How many GPUs NVML knows; 0 where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


def select_visible(count: int, visible: str | None) -> tuple[str, ...]:
    """The devices that `visible` (CUDA_VISIBLE_DEVICES, None when unset) leaves of `count`.

    As CUDA reads it: an index that does not exist hides itself and all after it.
    """
    if count == 0:
        return ()
    if visible is None:
        return tuple(str(index) for index in range(count))
    chosen: list[str] = []
    for name in (part.strip() for part in visible.split(",")):
        is_index = name.lstrip("-").isdecimal()
        if not name or (is_index and not 0 <= int(name) < count):
            break
        chosen.append(name)
    return tuple(chosen)


def plan_placement(machine: Machine, demand: Demand) -> Placement:
    """A share for each instance: GPUs where there are any, else cores."""
    if machine.gpus:
        return _place_on_gpus(machine.gpus, demand)
    return _place_on_cores(machine.cores, demand)


def format_cores(cores: Iterable[int]) -> str:
    """`(0, 1, 2, 5)` as `0-2,5`."""
    spans: list[list[int]] = []
    for core in sorted(cores):
        if spans and core == spans[-1][1] + 1:
            spans[-1][1] = core
        else:
            spans.append([core, core])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def format_binding(share: Share) -> str:
    """The cores of each rank as SGLang reads them: `0-1|2-3`."""
    return "|".join(format_cores(rank) for rank in share.cores)


def _place_on_gpus(gpus: Sequence[str], demand: Demand) -> Placement:
    needed = demand.instances * demand.ranks
    if needed > len(gpus):
        raise ConfigError(
            f"{demand.instances} instances of {demand.ranks} GPUs need {needed} GPUs, "
            f"visible are {len(gpus)} ({', '.join(gpus)}); start fewer --instances, "
            "lower SGLang's --tp-size, or use --set engine.force_cpu=true"
        )
    cuts = range(0, needed, demand.ranks)
    shares = tuple(Share(gpus=tuple(gpus[cut : cut + demand.ranks])) for cut in cuts)
    return Placement(shares, on_cpu=False)


def _place_on_cores(cores: Sequence[int], demand: Demand) -> Placement:
    if demand.ranks > len(cores):
        raise ConfigError(
            f"an instance of {demand.ranks} ranks needs as many cores, usable are {len(cores)} "
            f"({format_cores(cores)}); lower SGLang's --tp-size or --pp-size"
        )
    needed = demand.instances * demand.ranks
    slots = _split(cores, needed)
    cuts = range(0, needed, demand.ranks)
    shares = tuple(Share(cores=tuple(slots[cut : cut + demand.ranks])) for cut in cuts)
    warnings = [_describe_sharing(cores, demand)] if needed > len(cores) else []
    return Placement(shares, on_cpu=True, warnings=tuple(warnings))


def _describe_sharing(cores: Sequence[int], demand: Demand) -> str:
    return (
        f"{demand.instances * demand.ranks} worker processes share {len(cores)} cores, so each "
        f"slows the others down; at most {max(1, len(cores) // demand.ranks)} --instances avoid it"
    )


def _split(cores: Sequence[int], slots: int) -> list[tuple[int, ...]]:
    if slots > len(cores):
        return [(cores[slot % len(cores)],) for slot in range(slots)]
    size, extra = divmod(len(cores), slots)
    cuts = [slot * size + min(slot, extra) for slot in range(slots + 1)]
    return [tuple(cores[low:high]) for low, high in itertools.pairwise(cuts)]
