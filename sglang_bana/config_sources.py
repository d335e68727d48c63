"""Where each setting comes from: flag over environment over bana.toml over default.

    default ──▶ bana.toml ──▶ BANA_SECTION_KEY ──▶ flag, --set section.key=value ──▶ BanaConfig

One setting has one value and one origin. In the mappings `slo.classes` and `routing.options` each
source adds entries or replaces those of the same name; the origin is the last source that did.
"""

from __future__ import annotations

import copy
import os
import tomllib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from bana.slo.errors import ConfigError, describe_unknown
from bana.slo.routing import ROUTING
from sglang_bana.config import BanaConfig, expand_home
from sglang_bana.config_keys import (
    LOCKS,
    SETTINGS,
    check_value,
    describe_missing,
    mask_value,
    parse_text,
)
from sglang_bana.policies import build_policies
from sglang_bana.store.building import check_store

DEFAULT_FILE = "bana.toml"
CONFIG_ENV = "BANA_CONFIG"
# Variables with the prefix that are no settings: places, hand-overs to children, a client's key.
RESERVED_ENV = frozenset(
    {
        CONFIG_ENV,
        "BANA_ADMIN_API_KEY",
        "BANA_API_KEY",
        "BANA_CACHE",
        "BANA_CI_CACHE",
        "BANA_LMCACHE_PYTHON",
        "BANA_DATA",
        "BANA_INSTANCE",
        "BANA_SERVE_PID",
    }
)


class Source(StrEnum):
    """What kind of place a value comes from, weakest first."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


class Origin(msgspec.Struct, frozen=True):
    """Where one value comes from; `detail` is the flag, the variable or the file."""

    source: Source
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.source} {self.detail}".strip()


class FlagValue(msgspec.Struct, frozen=True):
    """What a command-line flag of its own said."""

    flag: str
    value: object


class ConfigRequest(msgspec.Struct, frozen=True):
    """What the command line said: a file, flags by setting name, and `--set` entries."""

    file: str | None = None
    flags: Mapping[str, FlagValue] = {}
    sets: tuple[str, ...] = ()


class LoadedConfig(msgspec.Struct, frozen=True):
    """The frozen configuration, with every value as plain data and its origin."""

    config: BanaConfig
    values: Mapping[str, object]
    origins: Mapping[str, Origin]

    def shown(self) -> Mapping[str, object]:
        """The values with secrets masked."""
        return {name: mask_value(name, value) for name, value in self.values.items()}

    def changed(self) -> Mapping[str, object]:
        """The shown values that are not defaults."""
        return {n: v for n, v in self.shown().items() if self.origins[n].source != Source.DEFAULT}


def load_config(request: ConfigRequest, environ: Mapping[str, str]) -> LoadedConfig:
    """The configuration of all sources; ConfigError is one line about the first bad entry."""
    layers = _Layers()
    path = _find_file(request.file, environ)
    if path is not None:
        layers.apply_file(path)
    layers.apply_environment(environ)
    layers.apply_flags(request.flags)
    for entry in request.sets:
        layers.apply_set(entry, request.flags)
    return layers.build()


class _Layers:
    def __init__(self) -> None:
        self._values = {name: copy.deepcopy(s.default) for name, s in SETTINGS.items()}
        self._origins = dict.fromkeys(SETTINGS, Origin(Source.DEFAULT))

    def apply_file(self, path: Path) -> None:
        for name, value in _flatten("", _read_toml(path), path):
            self._put(name, check_toml(name, value, path), Origin(Source.FILE, str(path)))

    def apply_environment(self, environ: Mapping[str, str]) -> None:
        known = {setting.env_name: setting for setting in SETTINGS.values()}
        for variable in sorted(environ):
            if not variable.startswith("BANA_") or variable in RESERVED_ENV:
                continue
            if variable not in known:
                raise ConfigError(_describe_variable(variable))
            setting = known[variable]
            refuse_empty(setting.name, environ[variable], variable)
            value = parse_text(setting, environ[variable], variable)
            self._put(setting.name, value, Origin(Source.ENVIRONMENT, variable))

    def apply_flags(self, flags: Mapping[str, FlagValue]) -> None:
        for name, given in flags.items():
            # Often an unset variable of a script: no key, say, must not come to mean no lock.
            if given.value == "":
                raise ConfigError(f"{given.flag} is empty; give a value or leave it out")
            value = check_value(SETTINGS[name], given.value, given.flag)
            self._put(name, value, Origin(Source.FLAG, given.flag))

    def apply_set(self, entry: str, flags: Mapping[str, FlagValue]) -> None:
        name, equals, text = entry.partition("=")
        if not equals:
            raise ConfigError(f"--set {entry!r} has no '='; allowed: --set section.key=value")
        if name in flags:
            raise ConfigError(f"{name} is given by {flags[name].flag} and by --set; keep one")
        origin = Origin(Source.FLAG, f"--set {name}")
        if name in SETTINGS:
            refuse_empty(name, text, origin.detail)
            self._put(name, parse_text(SETTINGS[name], text, origin.detail), origin)
        else:
            self._set_entry(name, text, origin)

    def build(self) -> LoadedConfig:
        tree: dict[str, Any] = {}
        for name, value in self._values.items():
            *sections, key = name.split(".")
            branch = tree
            for section in sections:
                branch = branch.setdefault(section, {})
            branch[key] = value
        config = msgspec.convert(tree, BanaConfig)
        check_config(config)
        return LoadedConfig(config, self._values, self._origins)

    def _set_entry(self, name: str, text: str, origin: Origin) -> None:
        """Change one entry inside a mapping: `slo.classes.batch.ttft_ms=90000`."""
        owner = next((s for s in SETTINGS if name.startswith(f"{s}.")), None)
        if owner is None or not isinstance(self._values[owner], dict):
            raise ConfigError(f"--set {name}: {describe_missing(name)}")
        whole = copy.deepcopy(self._values[owner])
        branch: Any = whole
        *path, key = name[len(owner) + 1 :].split(".")
        for step in path:
            branch = branch.setdefault(step, {})
            if not isinstance(branch, dict):
                raise ConfigError(
                    f"--set {name}: {step!r} in {owner} holds no further keys; end the name there"
                )
        branch[key] = _guess_plain(text)
        self._put(owner, check_value(SETTINGS[owner], whole, origin.detail), origin)

    def _put(self, name: str, value: object, origin: Origin) -> None:
        known = self._values[name]
        if isinstance(known, dict) and isinstance(value, dict):
            value = {**known, **value}
        self._values[name] = value
        self._origins[name] = origin


def check_config(config: BanaConfig) -> None:
    """Refuse what single values cannot show: SLO classes, policies and their options."""
    config.slo.rules()
    ROUTING.create(config.routing.policy, config.routing.options)
    build_policies(config.scheduling)
    check_store(config.store)
    supervisor = config.supervisor
    if supervisor.suspect_after_s >= supervisor.kill_after_s:
        raise ConfigError(
            f"supervisor.suspect_after_s={supervisor.suspect_after_s:g} must be below "
            f"supervisor.kill_after_s={supervisor.kill_after_s:g}; lower the first"
        )


def refuse_empty(name: str, text: str, where: str) -> None:
    """ConfigError when a setting that locks something is empty.

    Often an unset variable of a script: no key, say, must not come to mean no lock.
    """
    if name in LOCKS and not text:
        raise ConfigError(f"{name} from {where} is empty; give a value or leave it out")


def check_toml(name: str, value: object, path: Path) -> object:
    """A file's value, whose type must be right already: numbers are not written as text."""
    setting = SETTINGS[name]
    is_text = isinstance(value, str)
    if is_text and setting.is_structured:
        raise ConfigError(
            f"{name}={value!r} from {path}: expected a table or array, not text; write […] or {{…}}"
        )
    if is_text and isinstance(setting.default, (bool, int, float)):
        raise ConfigError(f"{name}={value!r} from {path}: expected a number, remove the quotes")
    return check_value(setting, value, str(path))


def _find_file(given: str | None, environ: Mapping[str, str]) -> Path | None:
    if given == "":
        raise ConfigError("--config is empty; name a readable file or leave it out")
    chosen = given or environ.get(CONFIG_ENV)
    if chosen:
        return expand_home(chosen)
    return Path(DEFAULT_FILE) if os.path.exists(DEFAULT_FILE) else None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read configuration {str(path)!r}: {error.strerror}; "
            f"name a readable file with --config or {CONFIG_ENV}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"configuration {str(path)!r} is no valid TOML: {error}; correct it there"
        ) from error


def _flatten(prefix: str, table: dict[str, Any], path: Path) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        name = f"{prefix}{key}"
        is_section = any(setting.startswith(f"{name}.") for setting in SETTINGS)
        if name in SETTINGS:
            yield name, value
        elif not is_section:
            raise ConfigError(f"{path}: {describe_missing(name)}")
        elif not isinstance(value, dict):
            raise ConfigError(
                f"{path}: {name}={value!r} is no table; write [{name}] above its keys"
            )
        else:
            yield from _flatten(f"{name}.", value, path)


def _describe_variable(variable: str) -> str:
    rest = variable.removeprefix("BANA_").lower()
    sections = sorted({name.split(".")[0] for name in SETTINGS})
    section = next((s for s in sections if rest.startswith(f"{s}_")), None)
    if section is None:
        reserved = [name.removeprefix("BANA_") for name in RESERVED_ENV]
        known = [*(f"{s.upper()}_…" for s in sections), *reserved]
        return describe_unknown(f"environment variable {variable}: BANA_ name", rest.upper(), known)
    keys = [n.split(".", 1)[1].replace(".", "_") for n in SETTINGS if n.startswith(f"{section}.")]
    what = f"environment variable {variable}: setting in section {section!r}:"
    return describe_unknown(what, rest.removeprefix(f"{section}_"), keys)


def _guess_plain(text: str) -> object:
    try:
        plain: object = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return plain
