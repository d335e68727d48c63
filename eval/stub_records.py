"""How a stub upstream behaves, what it remembers, and the shapes of its answers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import msgspec


class Fault(StrEnum):
    """What goes wrong with a generation."""

    NONE = "none"
    CLOSE_EARLY = "close_early"
    CLOSE_MIDWAY = "close_midway"
    CUT_EVENT = "cut_event"
    HANG = "hang"
    HANG_MIDWAY = "hang_midway"
    GARBAGE = "garbage"
    FLAT_ERROR = "flat_error"
    EXIT = "exit"


class StubSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a stub behaves. `fault_limit` generations suffer `fault`, later ones none of it.

    `poison`: generations whose body holds this text suffer the fault, all others none.
    """

    name: str = "stub"
    secret: str = ""
    chunks: Annotated[int, msgspec.Meta(ge=0)] = 8
    chunk_interval_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    first_delay_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    fault: Fault = Fault.NONE
    fault_limit: int = 1_000_000_000
    poison: str = ""
    stream_type: str = "text/event-stream"
    is_ready: bool = True
    load_endpoint: str = ""
    report_interval_s: Annotated[float, msgspec.Meta(gt=0)] = 0.1


class StubRequest(msgspec.Struct):
    """One request that a stub received. `outcome` is `ok`, `fault` or `cancelled`."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: object
    outcome: str = "open"


class StubLog(msgspec.Struct):
    """What a stub was asked so far; aborts are rids in the order of their arrival."""

    requests: list[StubRequest] = []
    aborts: list[str] = []
    generating: int = 0


def render_event(path: str, body: Mapping[str, object], place: int, name: str) -> bytes:
    """One event of a stream, in the shape that `path` answers with."""
    rid = body.get("rid")
    if path == "/generate":
        text = {"text": "x" * (place + 1), "meta_info": {"id": rid, "finish_reason": None}}
        return b"data: " + msgspec.json.encode(text) + b"\n\n"
    choice = {"index": 0, "delta": {"content": "x"}, "text": "x", "finish_reason": None}
    chunk = {"id": rid, "object": "chat.completion.chunk", "created": 0, "model": name}
    return b"data: " + msgspec.json.encode({**chunk, "choices": [choice]}) + b"\n\n"


def render_whole(path: str, body: Mapping[str, object], settings: StubSettings) -> object:
    """A complete answer, in the shape that `path` answers with."""
    rid = body.get("request_id") or body.get("rid")
    text = "x" * settings.chunks
    if path == "/generate":
        return {"text": text, "meta_info": {"id": rid, "finish_reason": {"type": "stop"}}}
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "text": text, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": settings.chunks, "total_tokens": 2}
    head = {"id": rid, "object": "chat.completion", "created": 0, "model": settings.name}
    return {**head, "choices": [choice], "usage": usage}
