"""Does SGLang run on the CPU here? An out-of-tree platform for machines without accelerator.

SGLang loads this module in every process of a machine that bana is installed on, so
`activate` declines wherever bana did not start the process.
"""

from __future__ import annotations

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform

from sglang_bana.engine.instance import is_instance, read_instance_spec


class BanaCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """Plain torch on the CPU. Out of tree, so that no CPU build of SGLang's kernels is needed."""

    _enum = PlatformEnum.OOT

    def get_device(self, device_id: int = 0) -> str:
        """The device's name; SGLang's callers want a string, unlike what the mixin returns."""
        return "cpu"

    def get_default_attention_backend(self) -> str:
        """What the cluster's configuration says."""
        return read_instance_spec().engine.attention_backend


def is_wanted() -> bool:
    """Whether this process is to use the platform: an instance without, or despite, a GPU."""
    if not is_instance():
        return False
    return not torch.accelerator.is_available() or read_instance_spec().engine.force_cpu


def activate() -> str | None:
    """The platform's class path where bana asks for it, None everywhere else."""
    if not is_wanted():
        return None
    return f"{BanaCpuPlatform.__module__}.{BanaCpuPlatform.__qualname__}"
