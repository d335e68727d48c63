"""The part that an instance does of a request, where only a header can tell it.

Some endpoints (`/v1/messages`, `/v1/responses`, Ollama's) take no `custom_params`. All of them come
by the place where SGLang notes a request, together with the HTTP request that it came in.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

from bana.slo.handoff import HANDOFF_HEADER, HANDOFF_PARAM, Handoff

TARGET = "sglang.srt.managers.tokenizer_manager.TokenizerManager._init_req_state"


def register_parts() -> None:
    """Have SGLang run `take_part` before it notes a request."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGET, take_part, HookType.BEFORE)


def take_part(_: Any, obj: Any, request: Any = None) -> None:
    """Tell the scheduler, in `custom_params` of `obj`, what the header of `request` says.

    ValueError, which SGLang answers with 400, for a part that there is not.
    """
    told = None if request is None else request.headers.get(HANDOFF_HEADER)
    if told is None or not isinstance(getattr(obj, "sampling_params", None), dict):
        return
    own = obj.sampling_params.get("custom_params") or {}
    obj.sampling_params["custom_params"] = {**own, HANDOFF_PARAM: Handoff(told).value}


def is_taking() -> bool:
    """Whether SGLang asks `take_part` in this process: it is given a stand-in to note."""
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    obj = SimpleNamespace(sampling_params={})
    request = SimpleNamespace(headers={HANDOFF_HEADER: Handoff.DECODE.value})
    # SGLang itself finds less in the stand-ins than in a request.
    with contextlib.suppress(AttributeError):
        TokenizerManager._init_req_state(SimpleNamespace(), obj, request)
    return "custom_params" in obj.sampling_params
