"""`bana eval compare A B …`: runs of the same workload, side against side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bana.slo.errors import ConfigError


def compare(
    folders: Annotated[
        list[Path], typer.Argument(metavar="A B …", help="Folders that `bana eval live` wrote.")
    ],
    *,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write this as one HTML page.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="As JSON on stdout.")] = False,
) -> None:
    """Each later folder over the first: ratios with intervals, and what they show.

    A folder is one run, or a measurement with several, which are paired by their seeds.
    """
    import msgspec

    from bana.eval.comparing import compare_runs, compose_comparison
    from bana.eval.live.archive import read_side
    from bana.eval.report.files import write_report
    from bana.eval.report.records import ReportInput
    from bana.eval.report.table import print_report

    if len(folders) < 2:
        raise ConfigError("one folder cannot be compared: name at least two, the baseline first")
    baseline, *others = [read_side(folder) for folder in folders]
    answers: dict[str, object] = {}
    for folder, side in zip(folders[1:], others, strict=True):
        compared = compare_runs([r.record for r in baseline], [r.record for r in side])
        name = f"{folder} over {folders[0]}"
        sentence = compose_comparison(compared).replace("B over A", name, 1)
        answers[name] = {"sentence": sentence, "comparisons": compared.comparisons}
        report = ReportInput((*baseline, *side), {}, compared.comparisons, sentence)
        if out is not None:
            single = len(others) == 1
            write_report(out if single else out.with_stem(f"{out.stem}-{folder.name}"), report)
        if not json_:
            print_report(report, sys.stdout)
    if json_:
        print(msgspec.json.format(msgspec.json.encode(answers)).decode())
