"""Policies are found by name, loaded only when asked for, and never half-broken."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from bana.slo.errors import ConfigError
from bana.slo.registry import PolicyEntry, PolicyRegistry


@dataclasses.dataclass(frozen=True)
class Options:
    """Of a policy in these tests."""

    size: Annotated[int, msgspec.Meta(ge=0)] = 3


def _refuse(_: object) -> str:
    raise ValueError("not today")


REGISTRY: PolicyRegistry[str] = PolicyRegistry(
    "routing",
    {
        "plain": PolicyEntry(lambda _: "plain"),
        "sized": PolicyEntry(lambda options: f"size {options.size}", Options),
        "moody": PolicyEntry(_refuse),
    },
)


def _install(folder: Path, name: str, entries: str, module: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[bana.routing]\n{entries}\n")
    (folder / f"{name}_module.py").write_text(module)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_built_ins_are_built_with_checked_options() -> None:
    assert REGISTRY.create("plain") == "plain"
    assert REGISTRY.create("sized") == "size 3"
    assert REGISTRY.create("sized", {"size": 5}) == "size 5"


@pytest.mark.parametrize(
    ("name", "options", "part"),
    [
        ("plian", {}, "did you mean 'plain'"),
        ("", {}, "known: moody, plain, sized"),
        ("sized", {"sice": 1}, "did you mean 'size'"),
        ("sized", {"size": "5"}, "size"),
        ("sized", {"size": -1}, "size"),
        ("plain", {"any": 1}, "known: none"),
        ("moody", {}, "not today"),
    ],
)
def test_what_cannot_be_used_is_refused(name: str, options: dict[str, object], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        REGISTRY.create(name, options)


def test_an_unknown_question_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'routing'"):
        PolicyRegistry("rooting", {})


def test_an_entry_point_is_listed_and_loaded_only_when_named(site: Path) -> None:
    text = "from bana.slo.registry import PolicyEntry\nentry = PolicyEntry(lambda _: 'third')\n"
    _install(site, "third", "third = third_module:entry", text)
    _install(site, "broken", "broken = broken_module:entry", "raise RuntimeError('no GPU here')")
    assert {"third", "broken"} <= set(REGISTRY.names())
    assert "third_module" not in sys.modules
    assert REGISTRY.create("third") == "third"
    with pytest.raises(ConfigError, match="no GPU here"):
        REGISTRY.create("broken")
    assert REGISTRY.create("plain") == "plain"


def test_a_name_taken_twice_is_refused_with_its_owners(site: Path) -> None:
    _install(site, "rival", "plain = rival_module:entry\nown = rival_module:entry", "entry = 3")
    with pytest.raises(ConfigError, match="more than once, by bana, rival"):
        REGISTRY.create("plain")
    with pytest.raises(ConfigError, match="is a int, allowed"):
        REGISTRY.create("own")


def test_a_policy_without_what_its_protocol_demands_is_refused() -> None:
    registry: PolicyRegistry[object] = PolicyRegistry(
        "routing", {"bare": PolicyEntry(lambda _: object())}, members=("decide_instance",)
    )
    with pytest.raises(ConfigError, match="'bare' is a object without decide_instance"):
        registry.create("bare")


def test_options_that_are_no_dataclass_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be a dataclass"):
        PolicyEntry(lambda _: "x", dict)


def test_an_entry_with_unusable_options_names_its_distribution(site: Path) -> None:
    text = "from bana.slo.registry import PolicyEntry\nentry = PolicyEntry(lambda _: 1, dict)\n"
    _install(site, "loose", "loose = loose_module:entry", text)
    with pytest.raises(ConfigError, match=r"'loose' of loose failed to load.*must be a dataclass"):
        REGISTRY.create("loose")


@pytest.mark.parametrize("name", ["plain", "own", "moody", "bare", "nothing"])
def test_every_refusal_of_a_policy_lists_the_known_ones(site: Path, name: str) -> None:
    text = "from bana.slo.registry import PolicyEntry\nentry = PolicyEntry(lambda _: object())\n"
    _install(site, "foe", "plain = foe_module:entry\nown = foe_module:entry", "entry = 3")
    _install(site, "bareness", "bare = bareness_module:entry", text)
    registry: PolicyRegistry[object] = PolicyRegistry(
        "routing",
        {"plain": PolicyEntry(lambda _: "plain"), "moody": PolicyEntry(_refuse)},
        members=("decide_instance",),
    )
    with pytest.raises(ConfigError, match=r"\(known: bare, moody, own, plain\)"):
        registry.create(name)
