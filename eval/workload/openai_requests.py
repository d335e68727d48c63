"""Requests as OpenAI's chat API takes them, one a line: bench_serving's dataset `openai`.

| field | what it is |
|---|---|
| `messages` | the prompt: [{role, content}] |
| `input_ids`, `text` or `prompt` | where given, the prompt instead, as token ids or text |
| `max_tokens` | how long the answer shall be |
| `timestamp` | when the request is due, in ms; in every line or in none |
| `model`, `max_completion_tokens` | left out, as there |
| all others | sent in the body as they are, as there |

Source of the format: sgl-project/sglang, python/sglang/benchmark/datasets/openai_dataset.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from bana.eval.requests import Message, Prompt
from bana.eval.workload.conversations import USER, Conversation, Piece, Turn, estimate_tokens
from bana.eval.workload.spec import PromptForm, TokenId, Tokens
from bana.eval.workload.token_runs import RecordedIds
from bana.eval.workload.trace_lines import Line, read_lines
from bana.eval.workload.trace_rows import TraceRow

_Ids = Annotated[tuple[TokenId, ...], msgspec.Meta(min_length=1)]
_Text = Annotated[str, msgspec.Meta(min_length=1)]
# What bana sets itself: answers come as streams whose end tells their length.
_REFUSED = ("stream", "stream_options")


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: _Text
    content: str


class _Record(msgspec.Struct, frozen=True):
    messages: Annotated[tuple[_Message, ...], msgspec.Meta(min_length=1)]
    max_tokens: Tokens
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=1e15)] | None = None
    input_ids: _Ids | None = None
    text: _Text | None = None
    prompt: _Ids | _Text | None = None
    model: object = None
    max_completion_tokens: object = None


def read_rows(path: Path) -> Iterator[TraceRow]:
    """Rows in order; ConfigError names the line that is malformed or out of order."""
    last_s: float | None = None
    for place, line in enumerate(read_lines(path)):
        row = _read_row(line)
        if place and (row.time_s is None) is not (last_s is None):
            raise line.refuse("timestamp in some lines only; give all of them one, or none")
        if row.time_s is not None and last_s is not None and row.time_s < last_s:
            raise line.refuse("timestamp is earlier than in the line before; sort the file")
        last_s = row.time_s
        yield row


def compose_requests(rows: Sequence[TraceRow], chars_per_token: float) -> tuple[Conversation, ...]:
    """One conversation of one turn a row."""
    found = []
    for number, row in enumerate(rows):
        assert row.prompt is not None
        asked = tuple(_to_pieces(row.prompt, chars_per_token))
        turn = Turn(asked, row.output_tokens, extra_body=row.extra_body)
        found.append(Conversation(number, (turn,)))
    return tuple(found)


def find_form(prompt: Prompt) -> PromptForm:
    """The form that a recorded prompt has."""
    if prompt.token_ids is not None:
        return PromptForm.TOKEN_IDS
    return PromptForm.TEXT if prompt.text is not None else PromptForm.CHAT


def _read_row(line: Line) -> TraceRow:
    fields, record = _decode(line)
    for name in _REFUSED:
        if name in fields:
            raise line.refuse(f"field {name!r} is set by whoever measures; remove it")
    known = _Record.__struct_fields__
    return TraceRow(
        time_s=None if record.timestamp is None else record.timestamp / 1e3,
        output_tokens=record.max_tokens,
        prompt=_choose_prompt(record, line),
        extra_body={name: value for name, value in fields.items() if name not in known},
    )


def _decode(line: Line) -> tuple[dict[str, Any], _Record]:
    try:
        fields = msgspec.json.decode(line.text, type=dict[str, Any])
        return fields, msgspec.convert(fields, _Record)
    except msgspec.MsgspecError as error:
        expected = '{"messages": [{"role": name, "content": text}], "max_tokens": n, …}'
        raise line.refuse(f"{error}; expected {expected}") from error


def _choose_prompt(record: _Record, line: Line) -> Prompt:
    given = [p for p in (record.input_ids, record.text, record.prompt) if p is not None]
    if len(given) > 1:
        raise line.refuse("more than one of input_ids, text and prompt; keep one of them")
    if not given:
        return Prompt(messages=tuple(Message(m.role, m.content) for m in record.messages))
    [chosen] = given
    return Prompt(text=chosen) if isinstance(chosen, str) else Prompt(token_ids=chosen)


def _to_pieces(prompt: Prompt, chars_per_token: float) -> Iterator[Piece]:
    if prompt.token_ids is not None:
        ids = tuple(prompt.token_ids)
        yield Piece(USER, RecordedIds(ids), len(ids))
        return
    text = () if prompt.text is None else (Message(USER, prompt.text),)
    for message in prompt.messages or text:
        tokens = estimate_tokens(message.content, chars_per_token)
        yield Piece(message.role, message.content, tokens)
