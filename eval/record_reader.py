"""A record from a mapping (a TOML file, say); whatever is wrong with that is one line."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from bana.slo.errors import ConfigError, describe_unknown

R = TypeVar("R", bound=msgspec.Struct)

_AT = re.compile(r"^(?P<problem>.*?)(?: - at `(?P<place>.*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"unknown field `(?P<name>.*)`", re.DOTALL)
SHOWN_CHARS = 80
ANY_KEY = "*"


def read_record(mapping: Mapping[str, Any], record: type[R], what: str) -> R:
    """The mapping as a `record`; ConfigError names the key, its value and what is allowed.

    `what` is what the settings are called in messages.
    """
    try:
        return msgspec.convert(mapping, record)
    except msgspec.ValidationError as error:
        raise ConfigError(_Explainer(record, what).explain(str(error), mapping)) from error


class _Explainer:
    """Turns what msgspec says about a mapping into what its writer can act on."""

    def __init__(self, record: type[msgspec.Struct], what: str) -> None:
        self._record = record
        self._what = what

    def explain(self, message: str, mapping: Mapping[str, Any]) -> str:
        """One line about one wrong entry."""
        match = _AT.match(message)
        problem, place = (match["problem"], match["place"] or "$") if match else (message, "$")
        path = self._name_entries(_split_place(place), mapping, problem)
        unknown = _UNKNOWN.search(problem)
        if unknown:
            known = [".".join([*path, name]) for name in self._keys_at(path, mapping)]
            return describe_unknown(f"{self._what} key", ".".join([*path, unknown["name"]]), known)
        value = _value_at(path, mapping)
        choices = list(self._choices_at(path, mapping))
        if problem.startswith("Invalid") and choices:
            return describe_unknown(
                f"{self._what} {'.'.join(path)}", str(value)[:SHOWN_CHARS], choices
            )
        shown = f"{'.'.join(path) or 'settings'}={repr(value)[:SHOWN_CHARS]}"
        hint = problem.replace("`", "").replace("Expected", "expected")
        return f"{self._what} {shown}: {hint}; correct this entry"

    def _name_entries(
        self, path: Sequence[str], mapping: Mapping[str, Any], problem: str
    ) -> list[str]:
        """`path` with the key of each table of free names, which msgspec leaves out."""
        named: list[str] = []
        for step in path:
            table = _value_at(named, mapping)
            if step != ANY_KEY:
                named.append(step)
                continue
            keys = list(table) if isinstance(table, Mapping) else []
            guilty = [k for k in keys if self._fails_alike(named, k, mapping, problem)]
            if not guilty:
                break
            named.append(guilty[0])
        return named

    def _fails_alike(
        self, path: Sequence[str], key: str, mapping: Mapping[str, Any], problem: str
    ) -> bool:
        """Whether the same is wrong when the table at `path` holds nothing but `key`."""
        reduced = copy.deepcopy(dict(mapping))
        table = _value_at(path, reduced)
        assert isinstance(table, dict)
        for other in [k for k in table if k != key]:
            del table[other]
        try:
            msgspec.convert(reduced, self._record)
        except msgspec.ValidationError as error:
            return str(error).startswith(problem)
        return False

    def _keys_at(self, path: Sequence[str], mapping: object) -> list[str]:
        """The known keys of the table at `path`; of a tagged one, those of its `kind`."""
        structs = list(_structs(self._type_at(path)))
        value = _value_at(path, mapping)
        kind = value.get("kind") if isinstance(value, Mapping) else None
        chosen = [s for s in structs if s.tag is not None and s.tag == kind] or structs
        tags = {s.tag_field for s in chosen if s.tag_field is not None}
        return sorted(tags | {field.encode_name for s in chosen for field in s.fields})

    def _choices_at(self, path: Sequence[str], mapping: object) -> Iterator[str]:
        """What an entry of few values may be: the names of an enum, or the kinds of a table."""
        if not path:
            return
        for kind in _flatten(self._type_at(path)):
            if isinstance(kind, inspect.EnumType):
                yield from (str(member.value) for member in kind.cls)
        for struct in _structs(self._type_at(path[:-1])):
            if struct.tag_field == path[-1]:
                yield str(struct.tag)

    def _type_at(self, path: Sequence[str]) -> inspect.Type:
        found: inspect.Type = inspect.type_info(self._record)
        for key in path:
            found = _step_into(found, key)
        return found


def _split_place(place: str) -> list[str]:
    """`$.limits[...].ttft_ms` as its keys, up to the entry of a list, which has no name."""
    named = place.split("` in `")[-1].strip("`").removeprefix("$")
    steps = named.replace("[...]", f".{ANY_KEY}").split("[", 1)[0].split(".")
    return [step for step in steps if step]


def _value_at(path: Sequence[str], mapping: object) -> object:
    value = mapping
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _step_into(kind: inspect.Type, key: str) -> inspect.Type:
    for member in _flatten(kind):
        if isinstance(member, inspect.DictType):
            return member.value_type
    fields = [f for s in _structs(kind) for f in s.fields if f.encode_name == key]
    return fields[0].type if fields else inspect.AnyType()


def _structs(kind: inspect.Type) -> Iterator[inspect.StructType]:
    return (k for k in _flatten(kind) if isinstance(k, inspect.StructType))


def _flatten(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.UnionType):
        for member in kind.types:
            yield from _flatten(member)
    else:
        yield kind
