"""`bana launch`: start a cluster, or put a front door before running servers."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from bana.cli.options import ConfigFile, Settings, load_settings
from bana.slo.errors import ConfigError

if TYPE_CHECKING:
    from sglang_bana.cluster.launch import Launch
    from sglang_bana.config_sources import LoadedConfig

Prefillers = Annotated[
    int | None, typer.Option(metavar="P", help="So many that compute prompts for the others.")
]
Decoders = Annotated[
    int | None, typer.Option(metavar="D", help="So many that decode what others computed.")
]
Allrounders = Annotated[int | None, typer.Option(metavar="B", help="So many that do both.")]

AdminKey = Annotated[str | None, typer.Option(help="Key of the administrative endpoints.")]
KeysFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="Hashed client keys with their classes.")
]


def launch(
    *,
    model: Annotated[
        str | None, typer.Option(help="smollm2 (embedded), a folder, or a Hugging Face name.")
    ] = None,
    instances: Annotated[int | None, typer.Option(help="How many SGLang servers.")] = None,
    prefill: Prefillers = None,
    decode: Decoders = None,
    both: Allrounders = None,
    host: Annotated[str | None, typer.Option(help="Address of the front door.")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the front door; 0: a free one.")] = None,
    upstream: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Attach a running server instead; repeatable."),
    ] = None,
    upstream_key_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Their key, or lines `URL KEY`.")
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="Key that clients must send.")] = None,
    admin_api_key: AdminKey = None,
    keys_file: KeysFile = None,
    run_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Private folder of this run.")
    ] = None,
    config: ConfigFile = None,
    set_: Settings = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the exact commands and start nothing.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="With --dry-run: as JSON.")] = False,
    sglang_args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- SGLANG-ARGUMENTS]", help="Passed on untouched."),
    ] = None,
) -> None:
    """Start SGLang servers with one front door, and keep them running until interrupted."""
    flags: dict[str, tuple[str, object]] = {
        "launch.model": ("--model", model),
        "launch.instances": ("--instances", instances),
        "launch.prefill": ("--prefill", prefill),
        "launch.decode": ("--decode", decode),
        "launch.both": ("--both", both),
        "launch.host": ("--host", host),
        "launch.port": ("--port", port),
        "launch.run_dir": ("--run-dir", run_dir),
        "launch.upstreams": ("--upstream", upstream),
        "launch.upstream_keys_file": ("--upstream-key-file", upstream_key_file),
        "launch.sglang_args": ("--", sglang_args),
        "auth.api_key": ("--api-key", api_key),
        "auth.admin_api_key": ("--admin-api-key", admin_api_key),
        "auth.keys_file": ("--keys-file", keys_file),
    }
    if json_ and not dry_run:
        raise ConfigError("--json prints what would be started; give it with --dry-run")
    loaded = load_settings(config, set_, flags)
    if dry_run:
        print_plan(loaded, as_json=json_)
    else:
        run_cluster(loaded)


def print_plan(loaded: LoadedConfig, *, as_json: bool) -> None:
    """Print what would be started; nothing is left behind."""
    from sglang_bana.cluster.commands import list_commands
    from sglang_bana.cluster.launch import foresee_model, plan_launch
    from sglang_bana.cluster.preflight import check_launch

    check_launch(loaded.config)
    model = foresee_model(loaded.config.launch.model)
    with plan_launch(loaded.config, model, os.environ) as planned:
        commands = list_commands(planned.blueprint, planned.run_dir)
        if as_json:
            import msgspec

            plan = {
                "url": planned.url,
                "run_dir": str(planned.run_dir.root),
                "warnings": planned.warnings,
                "settings": loaded.changed(),
                "commands": commands,
            }
            print(msgspec.json.format(msgspec.json.encode(plan)).decode())
            return
        _print_heading(loaded, planned)
        for command in commands:
            print(f"\n# {command.name}\n{command.format_line()}")


def run_cluster(loaded: LoadedConfig) -> None:
    """Run it in the foreground until it is told to stop."""
    from bana.cli.fetching import show_fetch
    from sglang_bana.cluster.launch import choose_model, plan_launch, run_launch
    from sglang_bana.cluster.preflight import check_launch
    from sglang_bana.cluster.progress import SteadyReporter, choose_reporter

    # Until the cluster has its own way to stop: what was begun is undone.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    check_launch(loaded.config)
    with show_fetch() as progress:
        model = choose_model(loaded.config.launch, progress)
    with plan_launch(loaded.config, model, os.environ) as planned:
        _print_heading(loaded, planned)
        reporter = SteadyReporter(choose_reporter())
        with contextlib.closing(reporter):
            run_launch(planned, reporter, os.environ)


def _print_heading(loaded: LoadedConfig, planned: Launch) -> None:
    for name, value in loaded.changed().items():
        print(f"{name} = {value!r}  ({loaded.origins[name]})")
    print("all other settings are defaults: `bana config show`")
    print(f"run directory: {planned.run_dir.root}")
    for warning in planned.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    sys.stdout.flush()
