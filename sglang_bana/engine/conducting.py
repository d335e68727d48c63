"""From the configuration to a conductor, or to none where every question is left to SGLang."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bana.slo.admission import ADMISSION
from bana.slo.governor import GOVERNORS
from bana.slo.limits import SloAsk, resolve_slo
from bana.slo.order import ORDERS
from sglang_bana.config import STOCK, InstanceSpec, SchedulingConfig
from sglang_bana.engine.conductor import Conductor, Policies, Terms

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def build_conductor(scheduler: Any, spec: InstanceSpec) -> Conductor | None:
    """The conductor of this scheduler; ConfigError when a policy cannot be built."""
    config = spec.scheduling
    if config.is_stock:
        return None
    terms = Terms(
        default=resolve_slo(SloAsk(), spec.slo.rules()),
        boot_id=BOOT_ID_FILE.read_text(encoding="ascii").strip(),
        head_rows=config.head_rows,
        max_started=config.max_started,
        seed=config.seed,
    )
    return Conductor(scheduler, build_policies(config), terms)


def build_policies(config: SchedulingConfig) -> Policies:
    """The named policies with their options; ConfigError for an unknown or failing one."""
    order, governor = config.order, config.governor
    return Policies(
        order=None if order == STOCK else ORDERS.create(order, config.order_options),
        governor=None if governor == STOCK else GOVERNORS.create(governor, config.governor_options),
        admission=ADMISSION.create(config.admission, config.admission_options),
    )
