"""A workload's settings from a mapping; whatever is wrong with them is one line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import inspect

from bana.eval.workload.spec import WorkloadSpec
from bana.eval.workload.spec_checks import check_consistency
from bana.slo.errors import ConfigError, describe_unknown

_AT = re.compile(r"^(?P<problem>.*?)(?: - at `(?P<place>.*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"unknown field `(?P<name>.*)`", re.DOTALL)
SHOWN_CHARS = 80


def read_workload_spec(mapping: Mapping[str, Any]) -> WorkloadSpec:
    """The checked settings; ConfigError names the key, its value and what is allowed."""
    try:
        spec = msgspec.convert(mapping, WorkloadSpec)
    except msgspec.ValidationError as error:
        raise ConfigError(_describe(str(error), mapping)) from error
    check_consistency(spec)
    return spec


def check_workload_spec(spec: WorkloadSpec) -> WorkloadSpec:
    """The same settings, checked: a record that Python code built has met no check yet."""
    return read_workload_spec(msgspec.to_builtins(spec))


def _describe(message: str, mapping: Mapping[str, Any]) -> str:
    match = _AT.match(message)
    problem, place = (match["problem"], match["place"] or "$") if match else (message, "$")
    path = _split_place(place)
    unknown = _UNKNOWN.search(problem)
    if unknown:
        known = [".".join([*path, name]) for name in _keys_at(path, mapping)]
        return describe_unknown("workload key", ".".join([*path, unknown["name"]]), known)
    value = _value_at(path, mapping)
    choices = list(_choices_at(path, mapping))
    if problem.startswith("Invalid") and choices:
        return describe_unknown(f"workload {'.'.join(path)}", str(value)[:SHOWN_CHARS], choices)
    shown = f"{'.'.join(path) or 'settings'}={repr(value)[:SHOWN_CHARS]}"
    hint = problem.replace("`", "").replace("Expected", "expected")
    return f"workload {shown}: {hint}; correct this entry"


def _split_place(place: str) -> list[str]:
    """`$.arrivals.rate_rps` as its keys, up to an entry that has no name of its own."""
    named = place.split("[", 1)[0].split("` in `")[-1].strip("`")
    return [key for key in named.split(".")[1:] if key]


def _value_at(path: Sequence[str], mapping: object) -> object:
    value = mapping
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _keys_at(path: Sequence[str], mapping: object) -> list[str]:
    """The known keys of the table at `path`; of a tagged one, those of its `kind`."""
    structs = list(_structs(_type_at(path)))
    value = _value_at(path, mapping)
    kind = value.get("kind") if isinstance(value, Mapping) else None
    chosen = [s for s in structs if s.tag is not None and s.tag == kind] or structs
    tags = {s.tag_field for s in chosen if s.tag_field is not None}
    return sorted(tags | {field.encode_name for s in chosen for field in s.fields})


def _choices_at(path: Sequence[str], mapping: object) -> Iterator[str]:
    """What an entry of few values may be: the names of an enum, or the kinds of a table."""
    if not path:
        return
    for kind in _flatten(_type_at(path)):
        if isinstance(kind, inspect.EnumType):
            yield from (str(member.value) for member in kind.cls)
    for struct in _structs(_type_at(path[:-1])):
        if struct.tag_field == path[-1]:
            yield str(struct.tag)


def _type_at(path: Sequence[str]) -> inspect.Type:
    found: inspect.Type = inspect.type_info(WorkloadSpec)
    for key in path:
        fields = [f for s in _structs(found) for f in s.fields if f.encode_name == key]
        if not fields:
            return inspect.AnyType()
        found = fields[0].type
    return found


def _structs(kind: inspect.Type) -> Iterator[inspect.StructType]:
    return (k for k in _flatten(kind) if isinstance(k, inspect.StructType))


def _flatten(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.UnionType):
        for member in kind.types:
            yield from _flatten(member)
    else:
        yield kind
