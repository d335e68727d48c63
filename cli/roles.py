"""`bana roles`: what the instances of a running cluster are there for, shown and changed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from bana.cli.options import AsJson, RunDirectory
from bana.slo.errors import ConfigError
from bana.slo.roles import Role

if TYPE_CHECKING:
    from sglang_bana.status import RoleTable

roles_app = typer.Typer(help="What instances are there for: computing prompts, decoding, or both.")


@roles_app.callback(invoke_without_command=True)
def roles(context: typer.Context, *, run_dir: RunDirectory = None, json_: AsJson = False) -> None:
    """Show every instance's role, or change one with `set`."""
    word = context.invoked_subcommand
    if word is None:
        show(run_dir=run_dir, json_=json_)
    elif run_dir is not None or json_:
        raise ConfigError(
            f"--run-dir and --json go behind `{word}`, to which they belong; see "
            f"`bana roles {word} --help`"
        )


@roles_app.command()
def show(*, run_dir: RunDirectory = None, json_: AsJson = False) -> None:
    """Show every instance's role."""
    from sglang_bana.cluster.control import ask_roles, find_live_run

    _print_table(ask_roles(find_live_run(run_dir, os.environ)), as_json=json_)


@roles_app.command("set")
def change(
    name: Annotated[str, typer.Argument(help="The instance, as `bana status` names it.")],
    role: Annotated[Role, typer.Argument(help="What it is there for from now on.")],
    *,
    run_dir: RunDirectory = None,
    json_: AsJson = False,
) -> None:
    """Give an instance a role: at once, without draining; what runs there stays."""
    from sglang_bana.cluster.control import ask_roles, find_live_run

    run = find_live_run(run_dir, os.environ)
    _print_table(ask_roles(run, {name: role}), as_json=json_)


def _print_table(table: RoleTable, *, as_json: bool) -> None:
    if as_json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(table)).decode())
        return
    width = max(map(len, table.roles))
    for name, role in sorted(table.roles.items()):
        print(f"{name:<{width}}  {role}")
