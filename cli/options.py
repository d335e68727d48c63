"""The options that several commands share, and how they become a request for a configuration."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sglang_bana.config_sources import LoadedConfig

ConfigFile = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Configuration file (default: bana.toml here)."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any setting; repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RunDirectory = Annotated[
    str | None,
    typer.Option("--run-dir", metavar="DIR", help="The run's folder (default: the newest run)."),
]


def load_settings(
    file: str | None, sets: list[str] | None, flags: dict[str, tuple[str, object]]
) -> LoadedConfig:
    """The configuration of this command line; `flags` maps a setting to its flag and value."""
    from sglang_bana.config_sources import ConfigRequest, FlagValue, load_config

    given = {name: FlagValue(*pair) for name, pair in flags.items() if pair[1] not in (None, [])}
    return load_config(ConfigRequest(file, given, tuple(sets or ())), os.environ)
