"""`bana config show`: the effective configuration, and where each value came from."""

from __future__ import annotations

from typing import Annotated

import typer

from bana.cli.options import AsJson, ConfigFile, Settings, load_settings

config_app = typer.Typer(help="The effective configuration.", no_args_is_help=True)


@config_app.callback()
def _group() -> None:
    """The effective configuration."""


@config_app.command()
def show(
    *,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each comes from.")] = False,
    json_: AsJson = False,
    config: ConfigFile = None,
    set_: Settings = None,
) -> None:
    """Print every setting as bana.toml would have it; secrets are masked."""
    import msgspec

    loaded = load_settings(config, set_, {})
    shown = loaded.shown()
    if json_:
        origins = {name: str(o) for name, o in loaded.origins.items()}
        rows = {n: {"value": v, "origin": origins[n]} for n, v in shown.items()}
        plain = rows if origin else shown
        print(msgspec.json.format(msgspec.json.encode(plain)).decode())
        return
    section = ""
    for name, value in shown.items():
        table, _, key = name.rpartition(".")
        if table != section:
            print(f"{'' if not section else chr(10)}[{table}]")
            section = table
        line = f"# {key} is not set" if value is None else f"{key} = {format_toml(value)}"
        print(f"{line:<60}  # {loaded.origins[name]}" if origin else line)


def format_toml(value: object) -> str:
    """`value` as TOML would have it, which has no word for what is not set."""
    import msgspec

    if isinstance(value, dict):
        told = (f"{k} = {format_toml(v)}" for k, v in value.items() if v is not None)
        return "{" + ", ".join(told) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(format_toml, value)) + "]"
    return msgspec.json.encode(value).decode()
