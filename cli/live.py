"""`bana eval live`: offer load to a server, and report which promises it kept.

status 0  measured      1  a run proves nothing      2  refused      130  interrupted, but written
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bana.slo.errors import ConfigError

if TYPE_CHECKING:
    from bana.eval.live.series import Series
    from bana.eval.live.servers import Side
    from bana.eval.live.spec import LiveSpec

UNPROVEN_STATUS = 1
INTERRUPTED_STATUS = 130
KEY_VARIABLE = "BANA_API_KEY"
ADMIN_KEY_VARIABLE = "BANA_ADMIN_API_KEY"


Url = Annotated[str | None, typer.Argument(metavar="[URL]", help="A running server, bana or not.")]
Start = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="Start this bana.toml instead; repeatable, then compared."),
]
SettingsFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Settings of the measurement (TOML).")
]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where reports go (default: a new folder here).")
]
Rate = Annotated[float | None, typer.Option(help="Requests a second, on average.")]
Rates = Annotated[
    str | None, typer.Option(metavar="R,R,…", help="Several rates, to find the max rate.")
]
FindMaxRate = Annotated[
    float | None, typer.Option(metavar="RATE", help="Search the max rate, from here.")
]
Duration = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Length of the measured window.")
]
Arrivals = Annotated[
    str | None, typer.Option(help="poisson, gamma, constant, bench_serving or trace.")
]
Trace = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Azure CSV, Mooncake, session or request JSONL.")
]
Prompts = Annotated[Path | None, typer.Option(metavar="FILE", help="A JSONL of texts to ask.")]
InputTokens = Annotated[int | None, typer.Option(help="Length of every prompt.")]
OutputTokens = Annotated[int | None, typer.Option(help="Length of every answer.")]
TtftMs = Annotated[float | None, typer.Option(help="Promise: the first token within.")]
TpotMs = Annotated[float | None, typer.Option(help="Promise: so long per further token.")]
EndpointName = Annotated[
    str | None, typer.Option(help="generate (SGLang), completions or chat (OpenAI).")
]
Model = Annotated[str | None, typer.Option(help="What OpenAI endpoints are asked for.")]
Seed = Annotated[list[int] | None, typer.Option(min=0, help="Repeatable; a run for each.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting of the file.")
]
ExportRequests = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the requests for SGLang's bench_serving (JSONL)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Summaries as JSON on standard output.")]


def live(
    url: Url = None,
    *,
    start: Start = None,
    settings: SettingsFile = None,
    out: Out = None,
    rate: Rate = None,
    rates: Rates = None,
    find_max_rate: FindMaxRate = None,
    duration: Duration = None,
    arrivals: Arrivals = None,
    trace: Trace = None,
    prompts: Prompts = None,
    input_tokens: InputTokens = None,
    output_tokens: OutputTokens = None,
    ttft_ms: TtftMs = None,
    tpot_ms: TpotMs = None,
    endpoint: EndpointName = None,
    model: Model = None,
    seed: Seed = None,
    set_: Sets = None,
    export_requests: ExportRequests = None,
    json_: AsJson = False,
) -> int:
    """Offer load in open loop, judge every request by its promise, and write a report.

    With --export-requests and no server, the requests are written and nothing is measured. Keys
    come from BANA_API_KEY and, to clear caches between runs, BANA_ADMIN_API_KEY.
    """
    from bana.eval.live.settings import read_live_spec

    entries: dict[str, object] = {
        "workload.arrivals.rate_rps": rate,
        "workload.arrivals.duration_s": duration,
        "workload.arrivals.kind": arrivals,
        "workload.trace.path": _text(trace),
        "workload.prompts.file": _text(prompts),
        "workload.prompts.input_tokens": _constant(input_tokens),
        "workload.prompts.output_tokens": _constant(output_tokens),
        "limits.default.ttft_ms": ttft_ms,
        "limits.default.tpot_ms": tpot_ms,
        "client.endpoint": endpoint,
        "client.model": model,
        "grid.rates_rps": None if rates is None else _parse_rates(rates),
        "grid.search.start_rps": find_max_rate,
        "seeds": seed,
    }
    given = {key: value for key, value in entries.items() if value is not None}
    spec = read_live_spec(settings, given, set_ or ())
    is_measured = export_requests is None or url is not None or bool(start)
    sides = choose_sides(url, start or []) if is_measured else []
    if export_requests is not None:
        write_export(spec, export_requests, url)
    return measure_sides(spec, sides, out, as_json=json_) if sides else 0


def write_export(spec: LiveSpec, path: Path, url: str | None) -> None:
    """Write the requests, and say how bench_serving offers them."""
    from bana.eval.export.command import export_requests

    exported = export_requests(spec, path, url)
    lines = [f"requests: {path} ({exported.requests})", f"  {exported.command}", exported.note]
    print("\n".join(line for line in lines if line), file=sys.stderr)


def choose_sides(url: str | None, variants: list[Path]) -> list[Side]:
    """Whom to measure: the server at `url`, or the variants that are started."""
    from bana.eval.client.target import Target
    from bana.eval.live.servers import GivenSide, StartedSide, name_sides

    if (url is None) == (not variants):
        raise ConfigError(
            "name what to measure: the URL of a running server, or --start FILE with a bana.toml; "
            "exactly one of the two"
        )
    key = os.environ.get(KEY_VARIABLE, "")
    if url is not None:
        return [GivenSide("server", Target(url, key), os.environ.get(ADMIN_KEY_VARIABLE, ""))]
    names = name_sides(variants)
    return [StartedSide(name, path, key) for name, path in zip(names, variants, strict=True)]


def measure_sides(spec: LiveSpec, sides: Sequence[Side], out: Path | None, *, as_json: bool) -> int:
    """Make every run, print what came of it, and say with which status to exit."""
    from bana.eval.client.progress import open_watch
    from bana.eval.live.archive import open_archive
    from bana.eval.live.series import SeriesRunner

    watch = open_watch(sys.stderr)
    with open_archive(out) as archive:
        series = SeriesRunner(spec, sides, watch, archive.keep).run()
        page = archive.conclude(series)
    watch.say(f"report: {page}")
    _print_series(series, as_json=as_json)
    if series.is_interrupted:
        return INTERRUPTED_STATUS
    return 0 if series.is_proof else UNPROVEN_STATUS


def _print_series(series: Series, *, as_json: bool) -> None:
    from bana.eval.live.archive import describe_series, report_series
    from bana.eval.report.table import print_report, print_run

    if as_json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(describe_series(series))).decode())
    elif len(series.measured) == 1:
        print_run(series.measured[0].stored, sys.stdout)
    else:
        print_report(report_series(series), sys.stdout)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _constant(tokens: int | None) -> dict[str, object] | None:
    return None if tokens is None else {"kind": "constant", "tokens": tokens}


def _parse_rates(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--rates {text!r}: allowed are numbers above 0 with commas between them, as in 1,2,4"
        ) from None
