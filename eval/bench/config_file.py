"""A bana.toml, written from settings: for clusters whose settings no flag could hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec


def write_config(path: Path, sections: Mapping[str, Mapping[str, object]]) -> None:
    """Write `sections` as a configuration file."""
    path.write_text(render_toml(sections), encoding="utf-8")


def render_toml(sections: Mapping[str, Mapping[str, object]]) -> str:
    """The same as TOML: a table a section, everything below it in line."""
    lines: list[str] = []
    for name, section in sections.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {_render(value)}" for key, value in section.items()]
    return "\n".join(lines) + "\n"


def _render(value: object) -> str:
    match value:
        case Mapping():
            pairs = (f"{_quote(key)} = {_render(item)}" for key, item in value.items())
            return "{" + ", ".join(pairs) + "}"
        case str():
            return _quote(value)
        case Sequence():
            return "[" + ", ".join(map(_render, value)) + "]"
        case bool() | int() | float():
            return msgspec.json.encode(value).decode()
        case _:
            raise TypeError(f"{value!r} has no form in a configuration file")


def _quote(text: str) -> str:
    # A JSON string is a TOML one.
    return msgspec.json.encode(text).decode()
