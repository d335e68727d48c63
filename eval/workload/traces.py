"""Recorded traces as rows in order of time, whoever wrote them.

| format | file | times | prompts |
|---|---|---|---|
| azure | CSV: TIMESTAMP, ContextTokens, GeneratedTokens | dates | lengths only |
| mooncake | JSONL: timestamp, input_length, output_length, hash_ids | ms | blocks by id |
| agent_sessions | JSONL or a folder of them: timestamp, input, output, session_id | µs | texts |
| openai | JSONL: messages, max_tokens and more, see `openai_requests` | ms or none | whole |
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from bana.eval.workload import azure, mooncake, openai_requests, recorded_sessions
from bana.eval.workload.spec import TraceFormat, TraceSpec
from bana.eval.workload.trace_lines import read_lines
from bana.eval.workload.trace_rows import TraceRow
from bana.slo.errors import ConfigError


class Trace(msgspec.Struct, frozen=True):
    """A segment of a trace. Its first row is at 0 s of trace time, or no row has a time."""

    format: TraceFormat
    rows: tuple[TraceRow, ...]


def read_trace(spec: TraceSpec) -> Trace:
    """The rows of the segment that `spec` chooses, unscaled; ConfigError names file and line."""
    path = Path(spec.path)
    kind = spec.format or _detect(path)
    chosen = list(_choose(_read_rows(kind, path, spec), spec))
    if not chosen:
        raise ConfigError(
            f"trace {spec.path!r} has no rows from trace.offset_s={spec.offset_s:g} on; "
            "lower the offset or name another file"
        )
    start_s = chosen[0].time_s or 0.0
    return Trace(kind, tuple(_shift(row, start_s) for row in chosen))


def _shift(row: TraceRow, start_s: float) -> TraceRow:
    if row.time_s is None:
        return row
    return msgspec.structs.replace(row, time_s=row.time_s - start_s)


def _read_rows(kind: TraceFormat, path: Path, spec: TraceSpec) -> Iterator[TraceRow]:
    match kind:
        case TraceFormat.AZURE:
            return azure.read_rows(path)
        case TraceFormat.MOONCAKE:
            return mooncake.read_rows(path, spec.block_tokens)
        case TraceFormat.AGENT_SESSIONS:
            return recorded_sessions.read_rows(path)
        case TraceFormat.OPENAI:
            return openai_requests.read_rows(path)


def _choose(rows: Iterator[TraceRow], spec: TraceSpec) -> Iterator[TraceRow]:
    taken = 0
    first_s: float | None = None
    for row in rows:
        time_s = row.time_s or 0.0
        first_s = time_s if first_s is None else first_s
        if time_s - first_s < spec.offset_s:
            continue
        yield row
        taken += 1
        if taken == spec.max_requests:
            return


def _detect(path: Path) -> TraceFormat:
    if path.is_dir():
        return TraceFormat.AGENT_SESSIONS
    if path.suffix == ".csv":
        return TraceFormat.AZURE
    first = next(read_lines(path), None)
    if first is None:
        raise ConfigError(f"trace {str(path)!r} is empty; name another file")
    if first.text.startswith("{"):
        for kind, key in (
            (TraceFormat.MOONCAKE, '"hash_ids"'),
            (TraceFormat.AGENT_SESSIONS, '"session_id"'),
            (TraceFormat.OPENAI, '"messages"'),
        ):
            if key in first.text:
                return kind
    if first.text.startswith(azure.COLUMNS[0]):
        return TraceFormat.AZURE
    known = ", ".join(kind.value for kind in TraceFormat)
    shown = repr(first.text[:60])
    raise first.refuse(f"no known trace begins like {shown}; set trace.format ({known})")
