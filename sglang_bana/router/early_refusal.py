"""Streams that end before they begin: the engine's refusal, given back its HTTP status.

SGLang opens a stream before its scheduler has seen the request, so what that refuses (a full queue,
limits that cannot be met) arrives as the first event of a 200. The client has seen nothing yet.

    data: {"error": {…, "code": 429}}                                     OpenAI's endpoints
    data: {…, "meta_info": {"finish_reason": {"type": "abort", …}}}       /generate
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from sglang_bana.router.errors import ErrorBody, code_of, type_of

# A refusal is one short event; what is longer is an answer.
MAX_EVENT_BYTES = 8192
RETRIED = frozenset({429, 503})
_RETRY = re.compile(r"retry after (\d+(?:\.\d+)?) s\b")
_SIGNS = (b'"error"', b'"abort"')


class Refusal(msgspec.Struct, frozen=True):
    """What the client is told instead of a stream; `retry_after_s` where the engine said it."""

    status: int
    error: ErrorBody
    retry_after_s: float | None


class _Told(msgspec.Struct, frozen=True):
    message: str = ""
    code: int | str | None = None


class _Reason(msgspec.Struct, frozen=True):
    type: Literal["abort"]
    status_code: int
    message: str = ""


class _Meta(msgspec.Struct, frozen=True):
    finish_reason: _Reason


class _Event(msgspec.Struct, frozen=True):
    error: _Told | None = None
    meta_info: _Meta | None = None


def read_refusal(chunk: bytes) -> Refusal | None:
    """The refusal in the first bytes of a stream; None where an answer begins."""
    if len(chunk) > MAX_EVENT_BYTES or not any(sign in chunk for sign in _SIGNS):
        return None
    event, end, _ = chunk.partition(b"\n\n")
    if not end or not event.startswith(b"data: "):
        return None
    try:
        found = msgspec.json.decode(event[6:], type=_Event)
    except msgspec.MsgspecError:
        return None
    if found.error is not None:
        return _refuse(found.error.code, found.error.message)
    if found.meta_info is not None:
        reason = found.meta_info.finish_reason
        return _refuse(reason.status_code, reason.message)
    return None


def read_retry_s(message: str) -> float | None:
    """The seconds after which the engine's message asks a client to come again."""
    found = _RETRY.search(message)
    return None if found is None else float(found[1])


def _refuse(status: int | str | None, message: str) -> Refusal | None:
    if not isinstance(status, int) or status not in RETRIED:
        return None
    error = ErrorBody(message, type_of(status), code_of(status, message))
    return Refusal(status, error, read_retry_s(message))
