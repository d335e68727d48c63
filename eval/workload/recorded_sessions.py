"""Recorded agent sessions (LMCache's agent traces): prompts as text that grows turn by turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from bana.eval.workload.conversations import Conversation, Piece, Turn, estimate_tokens
from bana.eval.workload.scaling import scale_length
from bana.eval.workload.trace_lines import Line, read_lines
from bana.eval.workload.trace_rows import TraceRow
from bana.slo.errors import ConfigError

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _Record(msgspec.Struct, frozen=True):
    timestamp: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    input: _Text
    output: str
    session_id: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class TextScale(msgspec.Struct, frozen=True):
    """By what texts are multiplied in length, and how many characters count as a token."""

    length_scale: float
    chars_per_token: float


def read_rows(path: Path) -> Iterator[TraceRow]:
    """Rows of a file, or of every *.jsonl in a folder, by time.

    Agents write as they end, not as they ask: lines out of order are sorted, not refused.
    """
    decoder = msgspec.json.Decoder(_Record)
    records = [_decode(decoder, line) for file in _list_files(path) for line in read_lines(file)]
    records.sort(key=lambda record: record.timestamp)
    start_us = records[0].timestamp if records else 0
    for record in records:
        time_s = (record.timestamp - start_us) / 1e6
        yield TraceRow(time_s, text=record.input, answer=record.output, session=record.session_id)


def compose_sessions(rows: Sequence[TraceRow], scale: TextScale) -> tuple[Conversation, ...]:
    """One request a row. A text is shortened at its end, so that turns still grow."""
    if scale.length_scale > 1:
        raise ConfigError(
            f"workload trace.length_scale={scale.length_scale:g}: recorded text cannot be made "
            "longer; allowed above 0 up to 1"
        )
    numbers: dict[str, int] = {}
    found = []
    for row in rows:
        number = numbers.setdefault(row.session, len(numbers))
        text = row.text[: scale_length(len(row.text), scale.length_scale)]
        answer = estimate_tokens(row.answer, scale.chars_per_token)
        asked = Piece("user", text, estimate_tokens(text, scale.chars_per_token))
        turn = Turn((asked,), scale_length(answer, scale.length_scale))
        found.append(Conversation(number, (turn,), session=row.session))
    return tuple(found)


def _list_files(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.jsonl"))
    if not files:
        raise ConfigError(f"trace folder {str(path)!r} holds no *.jsonl; name another")
    return files


def _decode(decoder: msgspec.json.Decoder[_Record], line: Line) -> _Record:
    try:
        return decoder.decode(line.text)
    except msgspec.DecodeError as error:
        expected = '{"timestamp": µs, "input": text, "output": text, "session_id": name}'
        raise line.refuse(f"{error}; expected {expected}") from error
