"""What really runs in this scheduler process, read off the live objects."""

from __future__ import annotations

import os
from typing import Any

import sglang
from sglang.srt.platforms import current_platform

from bana.slo.wire import EngineProof


def qualified_name(kind: type) -> str:
    """Module and name, as an import would spell it."""
    return f"{kind.__module__}.{kind.__qualname__}"


def read_proof(scheduler: Any) -> EngineProof:
    """The proof of the built `scheduler`: classes of the objects that do the work."""
    runner = scheduler.tp_worker.model_runner
    return EngineProof(
        pid=os.getpid(),
        scheduler_class=qualified_name(type(scheduler)),
        attention_backend=_describe_attention(runner),
        platform=qualified_name(type(current_platform)),
        device=str(scheduler.device),
        sglang_version=sglang.__version__,
        tp_size=scheduler.tp_size,
        page_size=scheduler.page_size,
    )


def _describe_attention(runner: Any) -> str:
    """The registered name, both of them where prefill and decode differ, and the class."""
    names = dict.fromkeys(
        (runner.prefill_attention_backend_str, runner.decode_attention_backend_str)
    )
    return f"{'+'.join(names)} ({qualified_name(type(runner.attn_backend))})"
