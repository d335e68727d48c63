"""Which settings exist: every leaf of BanaConfig by its dotted name, and how one is read.

A leaf is what has one value and one origin: `limits.max_requests`, `slo.allowed.min_ttft_ms`, and
also the whole mappings `slo.classes` and `routing.options`.
"""

from __future__ import annotations

import enum
import math
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from bana.slo.errors import ConfigError, describe_unknown
from sglang_bana.config import BanaConfig

SECRETS = frozenset({"auth.api_key", "auth.admin_api_key", "store.salt"})
# Settings that lock something: empty, they would mean no lock.
LOCKS = SECRETS | {"auth.keys_file", "launch.upstream_keys_file"}
MASK = "********"
SHOWN_CHARACTERS = 80


class Setting(msgspec.Struct, frozen=True):
    """One leaf: its dotted name, its type with bounds, and its default as plain data."""

    name: str
    type: Any
    default: object

    @property
    def env_name(self) -> str:
        """The environment variable that sets it."""
        return "BANA_" + self.name.upper().replace(".", "_")

    @property
    def is_structured(self) -> bool:
        """Whether text must be JSON: mappings and lists."""
        return _is_structured(self.type)


def list_settings() -> Mapping[str, Setting]:
    """Every setting by name, in the order of the sections."""
    plain = msgspec.to_builtins(BanaConfig())
    return {setting.name: setting for setting in _walk("", BanaConfig, plain)}


def describe_missing(name: str) -> str:
    """Say that there is no setting `name`: against its siblings where the section exists."""
    section, _, key = name.rpartition(".")
    siblings = _list_below(section)
    if section and siblings:
        return describe_unknown(f"setting in section {section!r}:", key, siblings)
    return describe_unknown("section", name.partition(".")[0], _list_below(""))


def parse_text(setting: Setting, text: str, where: str) -> object:
    """`text` as plain data of the setting's type; ConfigError names `where` it came from."""
    if not setting.is_structured:
        return check_value(setting, text, where)
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise _refuse(setting, text, where, f"must be JSON ({error})") from error
    return check_value(setting, value, where)


def check_value(setting: Setting, value: object, where: str) -> object:
    """`value` converted to the setting's type, as plain data; text may stand for a number."""
    if isinstance(setting.type, enum.EnumMeta) and isinstance(value, str):
        known = [str(value) for value in setting.type._value2member_map_]
        if value not in known:
            raise ConfigError(f"{describe_unknown(setting.name, value, known)} (from {where})")
    _check_entries(setting, value, where)
    try:
        typed = msgspec.convert(value, setting.type, strict=not isinstance(value, str))
    except msgspec.ValidationError as error:
        raise _refuse(setting, value, where, str(error).replace("`", "")) from error
    plain = msgspec.to_builtins(typed)
    if not _is_exact(plain):
        raise _refuse(setting, value, where, "must be a finite number of at most 64 bits")
    return plain


def mask_value(name: str, value: object) -> object:
    """`value` as it may be shown: a secret only tells whether it is set."""
    return MASK if name in SECRETS and value else value


def _list_below(section: str) -> set[str]:
    """The keys and sections directly in `section`; those at the top for an empty one."""
    prefix = f"{section}." if section else ""
    below = (name[len(prefix) :] for name in SETTINGS if name.startswith(prefix))
    return {rest.partition(".")[0] for rest in below}


def _check_entries(setting: Setting, value: object, where: str) -> None:
    """Refuse an unknown key in an entry of a table or array of records, such as `slo.classes`."""
    record = _find_record(setting.type)
    if record is None or not isinstance(value, dict | list):
        return
    known = [field.name for field in msgspec.structs.fields(record)]
    for name, entry in value.items() if isinstance(value, dict) else enumerate(value, 1):
        for key in entry if isinstance(entry, dict) else ():
            if key not in known:
                what = f"key in {setting.name}.{name} (from {where}):"
                raise ConfigError(describe_unknown(what, key, known))


def _find_record(kind: Any) -> type[msgspec.Struct] | None:
    """The record of which a mapping or array consists, None where it consists of others."""
    parts = typing.get_args(_strip_bounds(kind))
    records = [part for part in parts if part is not Ellipsis]
    record = records[-1] if records else None
    is_record = isinstance(record, type) and issubclass(record, msgspec.Struct)
    return record if is_record else None


def _refuse(setting: Setting, value: object, where: str, reason: str) -> ConfigError:
    shown = repr(mask_value(setting.name, value))
    if len(shown) > SHOWN_CHARACTERS:
        shown = shown[:SHOWN_CHARACTERS] + "…"
    return ConfigError(f"{setting.name}={shown} from {where}: {reason}; correct or remove it there")


def _walk(prefix: str, section: type, plain: Mapping[str, Any]) -> Iterator[Setting]:
    for field in msgspec.structs.fields(section):
        name = f"{prefix}{field.name}"
        default = plain[field.name]
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _walk(f"{name}.", field.type, default)
        else:
            typed = msgspec.convert(default, field.type)
            yield Setting(name, field.type, msgspec.to_builtins(typed))


def _is_structured(kind: Any) -> bool:
    origin = typing.get_origin(_strip_bounds(kind))
    return isinstance(origin, type) and issubclass(origin, (Mapping, tuple))


def _strip_bounds(kind: Any) -> Any:
    """The type without what Annotated says of its values."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind


def _is_exact(plain: object) -> bool:
    """Whether all numbers in it survive the way to another process."""
    if isinstance(plain, float):
        return math.isfinite(plain)
    if isinstance(plain, int):
        return -(2**63) <= plain < 2**63
    if isinstance(plain, dict):
        return all(_is_exact(value) for value in plain.values())
    return not isinstance(plain, (list, tuple)) or all(_is_exact(value) for value in plain)


SETTINGS: Mapping[str, Setting] = list_settings()
