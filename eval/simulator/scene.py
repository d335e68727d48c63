"""A scene from a TOML file, changed by the command line, and checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from bana.eval.live.settings import parse_value, put_entry, read_toml
from bana.eval.record_reader import read_record
from bana.eval.simulator.engine_spec import EngineSpec
from bana.eval.simulator.spec import PolicySpec, SceneSpec
from bana.eval.workload.spec_checks import check_consistency
from bana.slo.errors import ConfigError, describe_unknown

WHAT = "scene"


def read_scene(file: Path, sets: Iterable[str] = (), policies: Iterable[str] = ()) -> SceneSpec:
    """The scene in `file`, changed by `key=value` texts, with these policies alone (none: all).

    ConfigError is one line about the first entry that cannot be used.
    """
    tree = read_toml(file)
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text!r} has no '='; allowed: --set section.key=value")
        put_entry(tree, key.strip(), parse_value(value.strip()))
    scene = read_record(tree, SceneSpec, WHAT)
    check_scene(scene)
    return keep_policies(scene, policies)


def check_scene(scene: SceneSpec) -> None:
    """Refuse what single keys cannot show; ConfigError names it."""
    check_consistency(scene.workload)
    for name, policy in scene.policies.items():
        change_engine(scene.engine, policy, name)
        if policy.restore is not None and scene.store is None:
            raise ConfigError(
                f"scene policies.{name}.restore: the scene has no store to restore from; add a "
                "[store], or leave restore out"
            )
    if scene.offsets_s and scene.workload.trace is None:
        raise ConfigError(
            "scene offsets_s: only a trace has segments at offsets; give several seeds instead"
        )
    if scene.grid.rates_rps and scene.grid.search is not None:
        raise ConfigError("grid.rates_rps and grid.search exclude each other; keep one of them")


def keep_policies(scene: SceneSpec, names: Iterable[str]) -> SceneSpec:
    """The same scene with these policies alone, in this order; all where none is named."""
    wanted = list(names)
    for name in wanted:
        if name not in scene.policies:
            raise ConfigError(describe_unknown("policy of the scene", name, scene.policies))
    kept = {name: scene.policies[name] for name in wanted} or scene.policies
    return msgspec.structs.replace(scene, policies=kept)


def change_engine(engine: EngineSpec, policy: PolicySpec, name: str) -> EngineSpec:
    """The engine on which a policy decides; ConfigError where it cannot be."""
    mapping: Mapping[str, object] = {**msgspec.to_builtins(engine), **policy.engine}
    changed = read_record(mapping, EngineSpec, f"scene policies.{name}.engine")
    if changed.chunk_tokens < changed.page_tokens:
        raise ConfigError(
            f"scene engine.chunk_tokens={changed.chunk_tokens}: at least one page of "
            f"{changed.page_tokens}; raise it or lower engine.page_tokens"
        )
    return changed
