"""From the configuration to a conductor, or to none where every question is left to SGLang."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang.srt.runtime_context import get_parallel

from bana.slo.decisions import LogHeader, PolicyChoice
from bana.slo.errors import ConfigError
from bana.slo.limits import SloAsk, resolve_slo
from sglang_bana.config import STOCK, InstanceSpec
from sglang_bana.engine.scheduling.conductor import Conductor, Terms
from sglang_bana.engine.scheduling.counts import PassCounts
from sglang_bana.engine.scheduling.decision_log import DecisionLog
from sglang_bana.engine.scheduling.panel import Panel
from sglang_bana.policies import build_policies

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def build_conductor(
    scheduler: Any, spec: InstanceSpec, log: DecisionLog | None
) -> Conductor | None:
    """The conductor of this scheduler; ConfigError when a policy cannot be built."""
    config = spec.scheduling
    if config.is_stock:
        return None
    counts = PassCounts()
    terms = Terms(
        default=resolve_slo(SloAsk(), spec.slo.rules()),
        boot_id=BOOT_ID_FILE.read_text(encoding="ascii").strip(),
        head_rows=config.head_rows,
        max_started=config.max_started,
    )
    panel = Panel(build_policies(config), config.seed, counts, log)
    return Conductor(scheduler, panel, terms, counts)


def open_log(spec: InstanceSpec) -> DecisionLog | None:
    """Where rank 0 writes its decisions; None where nobody asked for it, or nothing is decided."""
    config = spec.scheduling
    is_idle = config.is_stock and not spec.store_endpoint
    if is_idle or not config.decision_log_bytes or get_parallel().tp_rank:
        return None
    header = LogHeader(
        seed=config.seed,
        order=_choice(config.order, config.order_options),
        governor=_choice(config.governor, config.governor_options),
        admission=_choice(config.admission, config.admission_options),
        restore=PolicyChoice(spec.restore, spec.restore_options) if spec.store_endpoint else None,
    )
    path = Path(spec.run_dir) / f"decisions-{spec.name}.jsonl"
    try:
        return DecisionLog(path, config.decision_log_bytes, header)
    except OSError as error:
        raise ConfigError(
            f"the decision log {path} cannot be opened: {error}; set "
            "scheduling.decision_log_bytes=0, or free the disk"
        ) from error


def _choice(name: str, options: Mapping[str, object]) -> PolicyChoice | None:
    return None if name == STOCK else PolicyChoice(name, options)
