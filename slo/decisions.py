"""What was decided, on which view, by which policy: one JSON line a decision, for both planes.

    header                     which policies, their options, the seed
    {"kind": "order", …}       view ──policy──▶ plan with its reasons
    {"kind": "governor", …}
    {"kind": "admission", …}
    {"kind": "restore", …}

A line stands for itself: random numbers are seeded anew for each decision, from the log's seed and
the line's `number`, so that any line can be decided again without those before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import msgspec
import numpy as np

from bana.slo.admission import AdmissionDecision, ArrivalView
from bana.slo.fetching import RestoreView
from bana.slo.governor import StepPlan, StepView
from bana.slo.order import EngineLoad, OrderPlan, QueueColumns, QueueView
from bana.slo.restore_plan import RestorePlan

LOG_VERSION = 1
MAX_DECISIONS = 2**32


class PolicyChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A policy by its registered name, with its options."""

    name: str
    options: Mapping[str, object] = {}


class LogHeader(msgspec.Struct, frozen=True, tag_field="kind", tag="header"):
    """The first line of a log; a question that was not asked has no policy."""

    seed: int
    order: PolicyChoice | None = None
    governor: PolicyChoice | None = None
    admission: PolicyChoice | None = None
    restore: PolicyChoice | None = None
    version: int = LOG_VERSION


class QueueRecord(msgspec.Struct, frozen=True):
    """A `QueueColumns` as plain data, and the rest of its `QueueView`."""

    sequence: tuple[int, ...]
    arrival_s: tuple[float, ...]
    deadline_s: tuple[float, ...]
    service_s: tuple[float, ...]
    prompt_tokens: tuple[int, ...]
    started: tuple[bool, ...]
    demoted: tuple[bool, ...]
    load: EngineLoad
    head_rows: int


class OrderRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="order"):
    """One answer of a queue order."""

    number: int
    at_s: float
    view: QueueRecord
    plan: OrderPlan


class GovernorRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="governor"):
    """One answer of a governor."""

    number: int
    view: StepView
    plan: StepPlan


class AdmissionRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="admission"):
    """One verdict on an arrival."""

    number: int
    at_s: float
    view: ArrivalView
    plan: AdmissionDecision


class RestoreRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="restore"):
    """One answer on whether a request waits for pages."""

    number: int
    at_s: float
    view: RestoreView
    plan: RestorePlan


Decision = OrderRecord | GovernorRecord | AdmissionRecord | RestoreRecord
LogLine = LogHeader | Decision

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[LogLine] = msgspec.json.Decoder(LogLine)


def encode_line(line: LogLine) -> bytes:
    """The line as it is written, without its end; finite numbers come back unchanged."""
    return _encoder.encode(line)


def decode_line(text: bytes | str) -> LogLine:
    """The line that was written; msgspec.DecodeError where it is none."""
    return _decoder.decode(text)


def seed_decision(rng: Random, seed: int, number: int) -> None:
    """Make `rng` the source of decision `number`, whatever was drawn from it before."""
    rng.seed(seed * MAX_DECISIONS + number)


def record_queue(view: QueueView) -> QueueRecord:
    """The view as plain data. O(rows)."""
    queue = view.queue
    return QueueRecord(
        sequence=tuple(queue.sequence.tolist()),
        arrival_s=tuple(queue.arrival_s.tolist()),
        deadline_s=tuple(queue.deadline_s.tolist()),
        service_s=tuple(queue.service_s.tolist()),
        prompt_tokens=tuple(queue.prompt_tokens.tolist()),
        started=tuple(queue.started.tolist()),
        demoted=tuple(queue.demoted.tolist()),
        load=view.load,
        head_rows=view.head_rows,
    )


def restore_queue(record: QueueRecord) -> QueueView:
    """The view that was recorded, equal in every bit. O(rows)."""
    queue = QueueColumns(
        sequence=np.array(record.sequence, dtype=np.int64),
        arrival_s=np.array(record.arrival_s, dtype=np.float64),
        deadline_s=np.array(record.deadline_s, dtype=np.float64),
        service_s=np.array(record.service_s, dtype=np.float64),
        prompt_tokens=np.array(record.prompt_tokens, dtype=np.int64),
        started=np.array(record.started, dtype=np.bool_),
        demoted=np.array(record.demoted, dtype=np.bool_),
    )
    return QueueView(queue, record.load, record.head_rows)
