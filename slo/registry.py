"""Which policies answer a question, by name: explicit built-ins, then entry points.

An entry point in group `bana.<question>` is loaded only when its name is asked for. Nothing is
swallowed: an unknown, duplicate or failing name raises ConfigError with the known names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

import msgspec

from bana.slo.errors import ConfigError, describe_unknown

P = TypeVar("P")

QUESTIONS = (
    "routing",
    "queue_order",
    "governor",
    "admission",
    "restore",
    "reader",
    "placement",
    "migration",
)


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """The options of a policy that has none."""


@dataclasses.dataclass(frozen=True)
class PolicyEntry(Generic[P]):
    """How to build one policy: `build(options)` with `options` an instance of the frozen type."""

    build: Callable[[Any], P]
    options: type = NoOptions

    def __post_init__(self) -> None:
        if not dataclasses.is_dataclass(self.options):
            raise ConfigError(
                f"options {self.options!r} of a policy must be a dataclass; decorate it with "
                "@dataclass(frozen=True), or leave it out for a policy without options"
            )


class PolicyRegistry(Generic[P]):
    """The policies of one question.

    `builtins` is an explicit dict literal beside the protocol, `members` the names that the
    protocol demands of a policy. Outsiders install a distribution with an entry point
    `bana.<question>` whose object is a `PolicyEntry`.
    """

    def __init__(
        self,
        question: str,
        builtins: Mapping[str, PolicyEntry[P]],
        members: tuple[str, ...] = (),
    ) -> None:
        if question not in QUESTIONS:
            raise ConfigError(describe_unknown("policy question", question, QUESTIONS))
        self.question = question
        self._builtins = dict(builtins)
        self._members = members

    @property
    def group(self) -> str:
        """The entry-point group that outsiders use."""
        return f"bana.{self.question}"

    def names(self) -> tuple[str, ...]:
        """Every name that can be asked for, sorted; nothing is loaded."""
        return tuple(sorted({*self._builtins, *(p.name for p in self._points())}))

    def entry(self, name: str) -> PolicyEntry[P]:
        """The entry behind `name`; ConfigError when unknown, ambiguous or broken."""
        points = [p for p in self._points() if p.name == name]
        owners = (["bana"] if name in self._builtins else []) + [_owner(p) for p in points]
        if len(owners) > 1:
            raise ConfigError(
                f"{self.question} policy {name!r} is defined more than once, by "
                f"{', '.join(owners)}; uninstall or rename one, or use another "
                f"{self._list_known()}"
            )
        if name in self._builtins:
            return self._builtins[name]
        if not points:
            unknown = describe_unknown(f"{self.question} policy", name, self.names())
            raise ConfigError(f"{unknown}; others are added by an entry point {self.group!r}")
        return self._load(points[0])

    def create(self, name: str, options: Mapping[str, object] | None = None) -> P:
        """Build policy `name` with its checked options."""
        entry = self.entry(name)
        parsed = self._parse_options(name, entry.options, dict(options or {}))
        try:
            policy = entry.build(parsed)
        except Exception as error:
            raise ConfigError(
                f"{self.question} policy {name!r} refused its options {options or {}}: {error}; "
                f"correct them, or use another {self._list_known()}"
            ) from error
        lacking = [member for member in self._members if not hasattr(policy, member)]
        if lacking:
            raise ConfigError(
                f"{self.question} policy {name!r} is a {type(policy).__name__} without "
                f"{', '.join(lacking)}; its protocol demands {', '.join(self._members)}: "
                f"repair it, or use another {self._list_known()}"
            )
        return policy

    def _points(self) -> list[EntryPoint]:
        return sorted(entry_points(group=self.group), key=lambda p: (p.name, _owner(p)))

    def _list_known(self) -> str:
        return f"(known: {', '.join(self.names())})"

    def _load(self, point: EntryPoint) -> PolicyEntry[P]:
        try:
            loaded = point.load()
        except Exception as error:
            raise ConfigError(
                f"{self.question} policy {point.name!r} of {_owner(point)} failed to load from "
                f"{point.value!r}: {type(error).__name__}: {error}; repair or uninstall it "
                f"{self._list_known()}"
            ) from error
        if not isinstance(loaded, PolicyEntry):
            raise ConfigError(
                f"{self.question} policy {point.name!r} of {_owner(point)} is a "
                f"{type(loaded).__name__}, allowed: bana.slo.registry.PolicyEntry; correct its "
                f"entry point, or use another {self._list_known()}"
            )
        return loaded

    def _parse_options(self, name: str, options: type, given: dict[str, object]) -> object:
        known = [f.name for f in dataclasses.fields(options)]
        for key in sorted(given):
            if key not in known:
                what = f"option of {self.question} policy {name!r}:"
                raise ConfigError(describe_unknown(what, key, known))
        try:
            return msgspec.convert(given, type=options, strict=True)
        except msgspec.ValidationError as error:
            raise ConfigError(
                f"options of {self.question} policy {name!r}: {error} (given: {given}); correct "
                "that one or leave it out"
            ) from error


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown distribution"
