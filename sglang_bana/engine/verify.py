"""Did bana's hooks take? SGLang swallows what plugins raise and then runs as stock."""

from __future__ import annotations

import os
from typing import Any

from sglang.srt.platforms import current_platform

from bana.slo.errors import SeamError
from sglang_bana.engine import platform, plugin
from sglang_bana.engine.handoff_header import TARGET as PARTS_TARGET
from sglang_bana.engine.handoff_header import is_taking
from sglang_bana.engine.platform import BanaCpuPlatform
from sglang_bana.engine.proof import qualified_name
from sglang_bana.engine.request_checks import TARGET, is_refusing
from sglang_bana.engine.seams import BANA_CPU, check_scheduler_object


def verify_hooks() -> None:
    """SeamError unless SGLang ran the plugin and chose the platform that bana asked for."""
    allowed = os.environ.get("SGLANG_PLUGINS")
    hint = f" (SGLANG_PLUGINS={allowed})" if allowed else ""
    if not plugin.was_activated():
        raise SeamError(
            f"SGLang did not run the plugin 'bana'{hint}: its log says why. "
            "SGLANG_PLUGINS must be unset or name bana and bana_cpu"
        )
    if platform.is_wanted() != isinstance(current_platform, BanaCpuPlatform):
        wanted = qualified_name(BanaCpuPlatform) if platform.is_wanted() else "SGLang's own"
        raise SeamError(
            f"SGLang runs on platform {qualified_name(type(current_platform))}, expected "
            f"{wanted}{hint}. Unset SGLANG_PLATFORM and SGLANG_PLUGINS, and reinstall bana"
        )


def verify_requests() -> None:
    """SeamError unless this process, which reads the requests, refuses deadly ones."""
    if not is_refusing():
        raise SeamError(
            f"SGLang does not ask bana's hook on {TARGET}, so that one request could end this "
            "instance: its log says why, or another SGLang plugin replaces what the hook is on; "
            "uninstall that one"
        )


def verify_parts() -> None:
    """SeamError unless this process, which reads the requests, learns of hand-offs by header."""
    if not is_taking():
        raise SeamError(
            f"SGLang does not ask bana's hook on {PARTS_TARGET}, so that some prompts could not be "
            "handed off: its log says why, or another SGLang plugin replaces what the hook is on; "
            "uninstall that one"
        )


def verify_scheduler(scheduler: Any, expected: Any, attention_backend: str | None) -> None:
    """SeamError unless the built scheduler is what this instance was asked to run."""
    verify_hooks()
    check_scheduler_object(scheduler)
    if type(scheduler) is not expected:
        raise SeamError(
            f"the scheduler is a {qualified_name(type(scheduler))}, expected "
            f"{qualified_name(expected)}; another SGLang plugin replaces it: uninstall that one"
        )
    if attention_backend == BANA_CPU:
        _verify_attention(scheduler.tp_worker.model_runner)


def _verify_attention(runner: Any) -> None:
    kind = type(runner.attn_backend)
    names = {runner.prefill_attention_backend_str, runner.decode_attention_backend_str}
    if names != {BANA_CPU} or not kind.__module__.startswith("sglang_bana."):
        raise SeamError(
            f"attention runs in {qualified_name(kind)} under {sorted(names)} although {BANA_CPU} "
            "was asked for; pass another --attention-backend or reinstall sglang==0.5.23"
        )
