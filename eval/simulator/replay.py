"""A decision log decided again, line by line: do the same policies still answer the same?"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TypeVar

import msgspec

from bana.eval.workload.trace_lines import Line, read_lines
from bana.slo.admission import ADMISSION
from bana.slo.decisions import (
    LOG_VERSION,
    AdmissionRecord,
    Decision,
    GovernorRecord,
    LogHeader,
    LogLine,
    OrderRecord,
    PolicyChoice,
    RestoreRecord,
    decode_line,
    restore_queue,
    seed_decision,
)
from bana.slo.errors import ConfigError
from bana.slo.governor import GOVERNORS
from bana.slo.order import ORDERS
from bana.slo.registry import PolicyRegistry
from bana.slo.restore import RESTORES

P = TypeVar("P")
MAX_SHOWN = 5
SHOWN_CHARS = 200


class Mismatch(msgspec.Struct, frozen=True):
    """A line whose plan is not what the policy answers now; both as JSON, cut."""

    line: int
    kind: str
    logged: str
    decided: str


class Replay(msgspec.Struct, frozen=True):
    """How many decisions were taken again, how many differ, and the first of those."""

    decisions: int
    differing: int
    mismatches: tuple[Mismatch, ...]


def replay_log(path: Path) -> Replay:
    """Decide every line of a log again; ConfigError for a file that is no such log. O(lines)."""
    lines = read_lines(path)
    first = next(lines, None)
    if first is None:
        raise ConfigError(f"decision log {str(path)!r} is empty; name another file")
    again = _Again(_read_header(first))
    decisions = differing = 0
    shown: list[Mismatch] = []
    for line in lines:
        decision = _read_decision(line)
        logged, decided = _show(decision.plan), _show(again.decide(decision))
        decisions += 1
        if logged == decided:
            continue
        differing += 1
        kind = str(decision.__struct_config__.tag)
        shown.append(Mismatch(line.number, kind, logged[:SHOWN_CHARS], decided[:SHOWN_CHARS]))
        del shown[MAX_SHOWN:]
    return Replay(decisions, differing, tuple(shown))


class _Again:
    """The policies of a log, asked once more."""

    def __init__(self, header: LogHeader) -> None:
        self._seed = header.seed
        self._rng = Random(header.seed)
        self._order = _create(ORDERS, header.order)
        self._governor = _create(GOVERNORS, header.governor)
        self._admission = _create(ADMISSION, header.admission)
        self._restore = _create(RESTORES, header.restore)

    def decide(self, decision: Decision) -> msgspec.Struct:
        match decision:
            case OrderRecord():
                seed_decision(self._rng, self._seed, decision.number)
                view = restore_queue(decision.view)
                order = _require(self._order, "order")
                return order.decide_order(view, decision.at_s, self._rng)
            case GovernorRecord():
                return _require(self._governor, "governor").decide_step(decision.view)
            case AdmissionRecord():
                admission = _require(self._admission, "admission")
                return admission.decide_admission(decision.view, decision.at_s)
            case RestoreRecord():
                seed_decision(self._rng, self._seed, decision.number)
                restore = _require(self._restore, "restore")
                return restore.decide_restore(decision.view, decision.at_s, self._rng)


def _create(registry: PolicyRegistry[P], choice: PolicyChoice | None) -> P | None:
    return None if choice is None else registry.create(choice.name, choice.options)


def _require(policy: P | None, question: str) -> P:
    if policy is None:
        raise ConfigError(
            f"the log's header names no {question} policy, but decisions of one follow; "
            "the file is damaged"
        )
    return policy


def _read_header(line: Line) -> LogHeader:
    header = _decode(line)
    if not isinstance(header, LogHeader):
        raise line.refuse("a decision before any header; a log begins with its header")
    if header.version != LOG_VERSION:
        raise line.refuse(
            f"version {header.version}, allowed: {LOG_VERSION}; replay it with its bana"
        )
    return header


def _read_decision(line: Line) -> Decision:
    decision = _decode(line)
    if isinstance(decision, LogHeader):
        raise line.refuse("a second header; a log has one, in its first line")
    return decision


def _decode(line: Line) -> LogLine:
    try:
        return decode_line(line.text)
    except msgspec.DecodeError as error:
        raise line.refuse(f"no line of a decision log: {error}") from error


def _show(plan: msgspec.Struct) -> str:
    return msgspec.json.encode(plan).decode()
