"""What a load run offers, and what came back of each request.

    Offered ──client──▶ Observed ──goodput──▶ summary

All times are seconds after *schedule zero*, the monotonic instant at which the first request of
the schedule may be due. Latencies count from `due_s`, when a request was *scheduled*; from
`sent_s` only where a name says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

DEFAULT_CLASS = "default"


class Phase(StrEnum):
    """Where in a run a request is due; only those of the window are counted.

    warm-up ──▶ window ──▶ cool-down: arrivals go on through all three without a pause.
    """

    WARMUP = "warmup"
    WINDOW = "window"
    COOLDOWN = "cooldown"


class Limits(msgspec.Struct, frozen=True):
    """What one request was promised, in seconds; None is no limit, which no request can miss."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


class Message(msgspec.Struct, frozen=True):
    """One message of a chat prompt."""

    role: str
    content: str


class Prompt(msgspec.Struct, frozen=True):
    """What is asked: exactly one of token ids, text and chat messages."""

    token_ids: Sequence[int] | None = None
    text: str | None = None
    messages: Sequence[Message] | None = None


class Offered(msgspec.Struct, frozen=True):
    """One request of the schedule.

    `prompt_tokens` is exact for token ids and an estimate for text. `output_tokens` is how many
    the answer shall have, `ignore_eos` whether exactly so many. `family` names the shared prefix
    and `session` the conversation it belongs to ("" for none). `cancel_after_s`: the client goes
    away that long after the send. `extra_body`: fields of the request's own, sent as they are and
    in place of the client's.
    """

    index: int
    due_s: float
    prompt: Prompt
    prompt_tokens: int
    output_tokens: int
    ignore_eos: bool = True
    slo_class: str = DEFAULT_CLASS
    limits: Limits = Limits()
    phase: Phase = Phase.WINDOW
    family: str = ""
    session: str = ""
    cancel_after_s: float | None = None
    extra_body: Mapping[str, object] = {}


class Ending(StrEnum):
    """How a request ended, as its client saw it."""

    FINISHED = "finished"
    REJECTED = "rejected"  # 429 or 503: the server would not
    FAILED = "failed"  # another status, no connection, an error event, garbage
    CUT = "cut"  # the stream stopped before its end
    UNFINISHED = "unfinished"  # not over by the deadline of the run or of the request
    CANCELLED = "cancelled"  # the client went away, as planned


class Observed(msgspec.Struct, frozen=True):
    """One request as its client saw it; None where that never happened.

    `event_times_s[i]` is when the i-th event with output came and `event_tokens[i]` how many
    tokens it carried: where the server does not tell, one each, corrected by its final count.
    `output_tokens` is what came, `asked_tokens` what was asked. `cached_tokens` and `instance`
    where the server tells. `error` is one line.
    """

    index: int
    due_s: float
    ending: Ending
    slo_class: str
    limits: Limits
    phase: Phase
    prompt_tokens: int
    asked_tokens: int
    sent_s: float | None = None
    first_s: float | None = None
    last_s: float | None = None
    end_s: float | None = None
    output_tokens: int = 0
    event_times_s: tuple[float, ...] = ()
    event_tokens: tuple[int, ...] = ()
    status: int | None = None
    error: str | None = None
    code: str | None = None
    request_id: str = ""
    cached_tokens: int | None = None
    instance: str | None = None
    family: str = ""
    session: str = ""


class Probe(msgspec.Struct, frozen=True):
    """A one-token request outside the load: how long the server keeps a newcomer waiting."""

    due_s: float
    sent_s: float | None
    first_s: float | None
    ending: Ending
    error: str | None = None


class ServerSample(msgspec.Struct, frozen=True):
    """What the server told about itself at one moment; instances by name."""

    at_s: float
    running: Mapping[str, float]
    waiting: Mapping[str, float]


class Validity(msgspec.Struct, frozen=True):
    """Whether the client kept the schedule. A run that is not valid proves nothing."""

    is_valid: bool
    reasons: tuple[str, ...] = ()


class Workload(msgspec.Struct, frozen=True):
    """A schedule, ordered by `due_s`, and what must be known to compare two runs of it.

    `fingerprint` is a digest of everything offered, times and prompts included: two runs are
    comparable only when it is equal. `facts` describe it for readers (rate, arrival CV, mean
    lengths, shared prefix share, source, time scale).
    """

    requests: tuple[Offered, ...]
    window_s: float
    seed: int
    fingerprint: str
    facts: Mapping[str, object]


class LoadRun(msgspec.Struct, frozen=True):
    """One run of a workload against one server."""

    observed: tuple[Observed, ...]
    probes: tuple[Probe, ...]
    samples: tuple[ServerSample, ...]
    window_s: float
    duration_s: float
    validity: Validity
    is_interrupted: bool = False
