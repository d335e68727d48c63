"""`bana eval`: measurements, live and simulated ones, and benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bana.cli.compare import compare
from bana.cli.live import live
from bana.cli.sim import replay, sim
from bana.slo.errors import ConfigError

if TYPE_CHECKING:
    from bana.eval.bench.harness import Scale
    from bana.slo.figures import BenchReport, Figure

INVALID_STATUS = 1
INTERRUPTED_STATUS = 130

eval_app = typer.Typer(
    help="Measure: live servers, simulated ones, and benchmarks.", no_args_is_help=True
)
eval_app.command("live")(live)
eval_app.command("compare")(compare)
eval_app.command("sim")(sim)
eval_app.command("replay")(replay)


@eval_app.callback()
def describe_eval() -> None:
    """Measure: live servers, simulated ones, and benchmarks with their figures."""


@eval_app.command("bench")
def bench(
    name: Annotated[str, typer.Argument(help="Which benchmark; `list` names them all.")],
    *,
    json: Annotated[
        Path | None, typer.Option(help="Where the report is written; required.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke: claims nothing.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Longer than the default.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard interrupted trials.")] = False,
    part: Annotated[
        list[str] | None, typer.Option(help="Measure this part alone; may be repeated.")
    ] = None,
) -> None:
    """Run one benchmark and write its figures; an interrupted run is taken up again."""
    from bana.eval.bench.errors import BenchError
    from bana.eval.bench.harness import BenchRequest, Earlier, run_bench
    from bana.eval.bench.registry import BENCHES, find_bench

    if name == "list":
        for known, entry in BENCHES.items():
            parts = f" (parts: {', '.join(entry.parts)})" if entry.parts else ""
            typer.echo(f"{known:13} {entry.help}{parts}")
        return
    found = find_bench(name)
    request = BenchRequest(
        output=_require_output(json),
        seed=seed,
        scale=_choose_scale(quick=quick, full=full),
        earlier=Earlier.DISCARD if fresh else Earlier.RESUME,
        parts=tuple(part or ()),
    )
    try:
        report = run_bench(found, request, _say)
    except KeyboardInterrupt:
        _say("interrupted; the same command takes up where it was stopped, --fresh begins anew")
        raise typer.Exit(INTERRUPTED_STATUS) from None
    except BenchError as error:
        # Unlike other errors it may quote the last lines of a server's log.
        _say(f"error: no valid measurement, no report written: {error}")
        raise typer.Exit(INVALID_STATUS) from None
    _print_report(report)


def _choose_scale(*, quick: bool, full: bool) -> Scale:
    from bana.eval.bench.harness import Scale

    if quick and full:
        raise ConfigError("--quick and --full exclude each other; give one of them or neither")
    if quick:
        return Scale.QUICK
    return Scale.FULL if full else Scale.DEFAULT


def _require_output(given: Path | None) -> Path:
    if given is None:
        raise ConfigError("no output file: add --json FILE, which the report is written to")
    return given


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print_report(report: BenchReport) -> None:
    for name, figure in report.figures.items():
        typer.echo(f"{name:36} {_describe_figure(figure)}")


def _describe_figure(figure: Figure) -> str:
    text = f"{figure.value:.4g} {figure.unit} ({figure.low:.4g} to {figure.high:.4g})"
    if figure.aim is None:
        return text
    verdict = {True: "met", False: "missed", None: "not judged"}[figure.met]
    return f"{text}, aim {figure.aim}: {verdict}"
