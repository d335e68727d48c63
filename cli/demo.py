"""`bana demo`: start a small cluster, ask it real questions through three clients, stop it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from bana.slo.errors import BanaError
from sglang_bana.lifeline import die_with_parent

if TYPE_CHECKING:
    from rich.console import Console

    from bana.cli.demo_clients import Answer

START_DEADLINE_S = 900.0
STOP_DEADLINE_S = 90.0
# Short prompts and answers, so that two small cores carry it.
LOAD: dict[str, object] = {
    "workload.arrivals.rate_rps": 0.5,
    "workload.arrivals.duration_s": 20.0,
    "workload.arrivals.warmup_s": 2.0,
    "workload.prompts.input_tokens": {"kind": "constant", "tokens": 64},
    "workload.prompts.output_tokens": {"kind": "constant", "tokens": 8},
    "workload.prompts.token_id_high": 300,
    "client.lateness_limit_ms": 1000.0,
}


class Progress(msgspec.Struct, frozen=True):
    """What the demo needs of the run's state file."""

    phase: str
    url: str


def demo(
    model: Annotated[str, typer.Option(help="What to serve; smollm2 is embedded.")] = "smollm2",
    instances: Annotated[int, typer.Option(min=1, help="How many SGLang servers.")] = 2,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where the report goes (default: a new temporary folder)."
        ),
    ] = None,
) -> None:
    """Start a cluster, ask it questions through three kinds of client, measure it, and stop it."""
    from rich.console import Console

    console = Console()
    begun_s = time.monotonic()
    with run_cluster(model, instances) as url:
        console.print(f"[bold]ready[/bold] at {url} after {time.monotonic() - begun_s:.0f} s\n")
        for client, answer in _ask_everyone(url):
            _print_answer(console, client, answer)
        _measure(url, report)
    console.print("\n[bold]stopped[/bold]; nothing is left running.")


def _measure(url: str, report: Path | None) -> None:
    """A short load against the cluster, as `bana eval live` would offer it."""
    from bana.cli.live import measure_sides
    from bana.eval.client.target import Target
    from bana.eval.live.servers import GivenSide
    from bana.eval.live.settings import read_live_spec

    spec = read_live_spec(None, LOAD)
    sides = [GivenSide("demo", Target(url, os.environ.get("BANA_API_KEY", "")))]
    print(f"a load of {LOAD['workload.arrivals.rate_rps']:g} requests/s", flush=True)
    folder = report or Path(tempfile.mkdtemp(prefix="bana-demo-")) / "report"
    measure_sides(spec, sides, folder, as_json=False)


@contextmanager
def run_cluster(model: str, instances: int) -> Iterator[str]:
    """The URL of a running cluster; on leaving it is stopped and waited for."""
    with tempfile.TemporaryDirectory(prefix="bana-demo-") as folder:
        run_dir = Path(folder) / "run"
        argv = [sys.executable, "-m", "bana.cli.main", "launch", "--model", model]
        argv += ["--instances", str(instances), "--port", "0", "--run-dir", str(run_dir)]
        # A demo that is killed leaves nothing running either.
        launcher = subprocess.Popen(argv, preexec_fn=partial(die_with_parent, os.getpid()))
        try:
            yield _wait_ready(launcher, run_dir / "state.json")
        finally:
            _stop(launcher)


def _wait_ready(launcher: subprocess.Popen[bytes], state_file: Path) -> str:
    """The front door's URL, once every instance answers."""
    deadline_s = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < deadline_s:
        if launcher.poll() is not None:
            raise BanaError(
                f"the demo's cluster ended with status {launcher.returncode} before it was ready; "
                "its lines above say why"
            )
        if state_file.exists():
            state = msgspec.json.decode(state_file.read_bytes(), type=Progress)
            if state.phase == "ready":
                return state.url
        time.sleep(0.2)
    raise BanaError(f"the demo's cluster was not ready within {START_DEADLINE_S:.0f} s")


def _stop(launcher: subprocess.Popen[bytes]) -> None:
    if launcher.poll() is None:
        launcher.send_signal(signal.SIGTERM)
    try:
        launcher.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        launcher.kill()
        launcher.wait()
        raise BanaError(
            f"the cluster was killed after {STOP_DEADLINE_S:.0f} s of stopping"
        ) from None


def _ask_everyone(url: str) -> Iterator[tuple[str, Answer]]:
    from bana.cli.demo_clients import ask_frontend_program, ask_http, ask_openai

    yield "OpenAI client", ask_openai(url, "What is the capital of France?")
    yield "OpenAI client", ask_openai(url, "Name three colours of the rainbow.")
    for answer in ask_frontend_program(url):
        yield "SGLang program", answer
    yield "plain HTTP", ask_http(url, "The capital of Italy is")


def _print_answer(console: Console, client: str, answer: Answer) -> None:
    console.print(f"[cyan]{client}[/cyan]  {answer.question}", highlight=False)
    console.print(f"  {answer.answer}", highlight=False, markup=False)
    if answer.first_s is not None and answer.per_token_s is not None:
        times = f"first token {answer.first_s * 1e3:.0f} ms, then {answer.per_token_s * 1e3:.0f} ms"
        console.print(f"  [dim]{times} a token, {answer.tokens} pieces[/dim]", highlight=False)
    console.print()
