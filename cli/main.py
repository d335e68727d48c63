"""`bana`: the commands, and how every error ends as one line on standard error.

status 0  done          1  it ran and failed, or the doctor warns
       2  refused: what was asked for cannot be done     130  interrupted
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tempfile
import traceback
from typing import Any

import typer

from bana.cli.config import config_app
from bana.cli.doctor import doctor
from bana.cli.launch import launch
from bana.cli.model import model_app
from bana.cli.roles import roles_app
from bana.cli.status import status, stop
from bana.cli.store import store_app
from bana.slo.errors import BanaError

REFUSED = 2
INTERRUPTED = 130

app = typer.Typer(
    name="bana",
    help="Clusters of SGLang servers that keep their users' latency promises.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(launch)
app.command()(status)
app.command()(stop)
app.command()(doctor)
app.add_typer(config_app, name="config")
app.add_typer(model_app, name="model")
app.add_typer(store_app, name="store")
app.add_typer(roles_app, name="roles")


def mount_optional(target: typer.Typer) -> None:
    """Add the commands that live in rooms of their own, where those are installed."""
    if importlib.util.find_spec("bana.cli.demo") is not None:
        target.command()(importlib.import_module("bana.cli.demo").demo)
    if importlib.util.find_spec("bana.cli.bench") is not None:
        target.add_typer(importlib.import_module("bana.cli.bench").eval_app, name="eval")


mount_optional(app)


def run() -> None:
    """The console script: run a command and exit with its status."""
    sys.exit(run_command(app, sys.argv[1:]))


def run_command(commands: typer.Typer, argv: list[str]) -> int:
    """The exit status of `argv`; whatever goes wrong is one line on standard error."""
    command = typer.main.get_command(commands)
    try:
        outcome: Any = command.main(args=argv, prog_name="bana", standalone_mode=False)
        sys.stdout.flush()
    except BanaError as error:
        return _say_error(str(error), getattr(error, "status", REFUSED))
    except (KeyboardInterrupt, typer.Abort):
        return _say_error("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has seen enough; nothing may be flushed into it any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        return _say_unexpected(error)
    return outcome if isinstance(outcome, int) else 0


def _say_unexpected(error: Exception) -> int:
    # Click's own errors carry an exit code and a message for the user.
    if hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        where = f"; see `{context.command_path} --help`" if context is not None else ""
        return _say_error(f"{error.format_message().rstrip('.')}{where}", REFUSED)
    fd, path = tempfile.mkstemp(prefix="bana-error-", suffix=".log")
    with os.fdopen(fd, "w", encoding="utf-8") as log:
        traceback.print_exception(error, file=log)
    return _say_error(f"{type(error).__name__}: {error} (unexpected; details in {path})", 1)


def _say_error(message: str, status: int) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    run()
