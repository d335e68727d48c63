"""A measurement's settings: a TOML file, then what the command line says, then checks."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bana.eval.live.spec import LiveSpec, complete_spec
from bana.eval.record_reader import read_record
from bana.eval.workload.spec_checks import check_consistency
from bana.slo.errors import ConfigError

# What is measured where nothing else is said: long enough for a p99, short enough to wait for.
DEFAULTS: Mapping[str, object] = {"rate_rps": 1.0, "duration_s": 60.0, "warmup_s": 10.0}
MAX_DEPTH = 8


def read_live_spec(
    file: Path | None, entries: Mapping[str, object], sets: Iterable[str] = ()
) -> LiveSpec:
    """The settings of `file`, changed by `entries` (dotted keys) and then by `key=value` texts.

    ConfigError is one line about the first entry that cannot be used.
    """
    tree = {} if file is None else read_toml(file)
    for key, value in entries.items():
        put_entry(tree, key, value)
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text!r} has no '='; allowed: --set section.key=value")
        put_entry(tree, key.strip(), parse_value(value.strip()))
    _apply_defaults(tree)
    spec = read_record(tree, LiveSpec, "measurement")
    check_consistency(spec.workload)
    return complete_spec(spec)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a file; ConfigError where it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read {str(path)!r} ({error.strerror}); name a TOML file of settings"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} is no TOML: {error}; correct it") from error


def put_entry(tree: dict[str, Any], key: str, value: object) -> None:
    """Set a dotted key; ConfigError where a part of it is no table."""
    *path, name = key.split(".")
    if not all([*path, name]) or len(path) > MAX_DEPTH:
        raise ConfigError(
            f"setting {key!r}: allowed are dotted names such as workload.arrivals.rate_rps"
        )
    branch = tree
    for step in path:
        branch = branch.setdefault(step, {})
        if not isinstance(branch, dict):
            raise ConfigError(f"setting {key}: {step!r} is a value and holds no further keys")
    branch[name] = value


def parse_value(text: str) -> object:
    """A value as TOML writes it; what is none is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _apply_defaults(tree: dict[str, Any]) -> None:
    """A rate and a length for schedules that need one; a trace brings its own times."""
    workload = tree.setdefault("workload", {})
    arrivals = workload.setdefault("arrivals", {}) if isinstance(workload, dict) else None
    if not isinstance(arrivals, dict):
        return
    for key, value in ({"kind": "trace"} if "trace" in workload else DEFAULTS).items():
        arrivals.setdefault(key, value)
