"""Prompts from a JSONL of texts: single ones, whole chats, or conversations of several turns.

| field | a line is |
|---|---|
| `messages` | one prompt: [{role, content}], sent as it is |
| `conversations` | turns with recorded answers: [{from, value}] or [{role, content}] |
| `turns` | turns without answers: [text] |
| `prompt`, `text`, or the one that is named | one prompt: text |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bana.eval.requests import Message
from bana.eval.workload.conversations import ASSISTANT, SYSTEM, USER
from bana.eval.workload.trace_lines import Line, read_lines
from bana.slo.errors import ConfigError, describe_unknown

MAX_LINES = 200_000
_ROLES = {"human": USER, "gpt": ASSISTANT, "chatgpt": ASSISTANT, "bard": ASSISTANT}
_ENTRY_FIELDS = ("role", "from", "content", "value")


class FileTurn(msgspec.Struct, frozen=True):
    """What is asked, and the recorded answer; "" where there is none."""

    asked: tuple[Message, ...]
    answer: str = ""


class FileConversation(msgspec.Struct, frozen=True):
    """One line of the file."""

    turns: tuple[FileTurn, ...]


def read_prompt_file(name: str, field: str) -> tuple[FileConversation, ...]:
    """The conversations of all lines; ConfigError names the line that cannot be used."""
    found: list[FileConversation] = []
    for line in read_lines(Path(name)):
        if len(found) == MAX_LINES:
            raise line.refuse(f"more than {MAX_LINES} prompts; cut the file")
        found.append(_read_line(line, field))
    if not found:
        raise ConfigError(f"prompt file {name!r} is empty; give it one JSON object a line")
    return tuple(found)


def _read_line(line: Line, field: str) -> FileConversation:
    record = _decode(line)
    readers = {
        "messages": _read_messages,
        "conversations": _read_conversation,
        "turns": _read_turns,
        "prompt": _read_text,
        "text": _read_text,
    }
    if field:
        if field not in record:
            raise line.refuse(describe_unknown("field", field, record))
        return readers.get(field, _read_text)(record[field], line)
    for known, read in readers.items():
        if known in record:
            return read(record[known], line)
    expected = f"expected one of {', '.join(readers)}; or name one with prompts.field"
    raise line.refuse(f"fields {', '.join(sorted(record))[:80]!r}: {expected}")


def _decode(line: Line) -> Mapping[str, Any]:
    try:
        record = msgspec.json.decode(line.text)
    except msgspec.DecodeError as error:
        raise line.refuse(f"{error}; expected one JSON object a line") from error
    if not isinstance(record, dict):
        raise line.refuse(f"a JSON {type(record).__name__}; expected an object")
    return record


def _read_text(value: object, line: Line) -> FileConversation:
    return FileConversation((FileTurn((Message(USER, _check_text(value, line)),)),))


def _read_turns(value: object, line: Line) -> FileConversation:
    texts = _check_list(value, line)
    return FileConversation(
        tuple(FileTurn((Message(USER, _check_text(text, line)),)) for text in texts)
    )


def _read_messages(value: object, line: Line) -> FileConversation:
    messages = tuple(_read_message(entry, line) for entry in _check_list(value, line))
    return FileConversation((FileTurn(messages),))


def _read_conversation(value: object, line: Line) -> FileConversation:
    """Each answer ends a turn; one before the first question answers nothing and is left out."""
    turns: list[FileTurn] = []
    asked: list[Message] = []
    for entry in _check_list(value, line):
        message = _read_message(entry, line)
        if message.role != ASSISTANT:
            asked.append(message)
        elif any(m.role != SYSTEM for m in asked):
            turns.append(FileTurn(tuple(asked), message.content))
            asked = []
    if any(m.role != SYSTEM for m in asked):
        turns.append(FileTurn(tuple(asked)))
    if not turns:
        raise line.refuse("the conversation asks nothing; expected an entry from 'human' or 'user'")
    return FileConversation(tuple(turns))


def _read_message(entry: object, line: Line) -> Message:
    if not isinstance(entry, dict):
        raise line.refuse(f"a message is a JSON {type(entry).__name__}; expected an object")
    role = entry.get("role", entry.get("from"))
    if not isinstance(role, str) or not role:
        raise line.refuse(f"a message has no role (known fields: {', '.join(_ENTRY_FIELDS)})")
    content = _check_text(entry.get("content", entry.get("value")), line)
    return Message(_ROLES.get(role, role), content)


def _check_text(value: object, line: Line) -> str:
    if not isinstance(value, str) or not value:
        shown = repr(value)[:40]
        raise line.refuse(f"{shown} where a prompt is expected; allowed: text that is not empty")
    return value


def _check_list(value: object, line: Line) -> Sequence[object]:
    if not isinstance(value, list) or not value:
        raise line.refuse(f"{repr(value)[:40]} where a list of turns or messages is expected")
    return value
