"""How a stub upstream behaves, what it remembers, and when it goes wrong."""

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
    REFUSE = "refuse"
    REFUSE_IN_STREAM = "refuse_in_stream"
    UNAVAILABLE = "unavailable"
    ERROR_EVENT = "error_event"
    NO_DONE = "no_done"
    NO_STREAM = "no_stream"


class StubSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a stub behaves. `fault_limit` generations suffer `fault`, later ones none of it.

    `poison`: generations whose body holds this text suffer the fault, all others none.
    `is_length_honoured`: as many tokens as the request asks for, `chunks` only where it does not.
    `has_role_event`: a chat begins with an event without a token. `namespace`: in its load reports
    it says that it keeps such pages in a store; without one that it has none.
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
    is_length_honoured: bool = False
    has_role_event: bool = False
    report_interval_s: Annotated[float, msgspec.Meta(gt=0)] = 0.1
    namespace: str = ""


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
