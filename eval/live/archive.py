"""Where the runs of a measurement are kept, and the one report over all of them.

FOLDER/<label>/   one run: report.html, summary.json, requests.jsonl, …
FOLDER/           over all of them: report.html, series.json
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from bana.eval.comparing import compose_comparison
from bana.eval.live.joining import Measured
from bana.eval.live.series import Series
from bana.eval.report.files import SUMMARY, check_folder, read_run, write_report, write_run
from bana.eval.report.lines import write_bytes
from bana.eval.report.records import ReportInput, StoredRun
from bana.eval.sentence import compose_capacity
from bana.eval.summary import Comparison, MaxRate, Summary
from bana.slo.errors import ConfigError

PAGE = "report.html"
SERIES = "series.json"
MAX_SAME = 1000


class SeriesSummary(msgspec.Struct, frozen=True):
    """A measurement for machines: what `--json` prints and `series.json` holds."""

    sentence: str
    runs: Mapping[str, Summary]
    max_rates: Mapping[str, MaxRate]
    p99_bounded: Mapping[str, MaxRate]
    comparisons: Mapping[str, tuple[Comparison, ...]]


@contextlib.contextmanager
def open_archive(given: Path | None) -> Iterator[Archive]:
    """The archive of a measurement, its folder made beforehand; one that stays empty is removed."""
    if given is not None and (given / SERIES).exists():
        raise ConfigError(f"{given} already holds a measurement; name another folder")
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    folder = given or Path(f"bana-eval-{now}")
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be made ({error.strerror or error}); name another folder"
        ) from error
    try:
        yield Archive(folder)
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


class Archive:
    """Writes each run as soon as it is made, so that an end halfway loses none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, measured: Measured) -> None:
        """Write one run to a folder of its own."""
        write_run(self._locate(measured.point.folder_name), measured.stored)

    def conclude(self, series: Series) -> Path:
        """Write the report over all runs, and the same for machines."""
        page, place = self._folder / PAGE, self._folder / SERIES
        write_report(page, report_series(series))
        summary = msgspec.json.encode(describe_series(series))
        try:
            write_bytes(place, msgspec.json.format(summary, indent=2) + b"\n")
        except OSError as error:
            place.unlink(missing_ok=True)
            raise ConfigError(
                f"{place} cannot be written ({error.strerror or error}); free space: the runs "
                "beside it are whole"
            ) from error
        return page

    def _locate(self, label: str) -> Path:
        """A folder for a run; one rate may be tried more than once."""
        names = [label, *(f"{label}-{number}" for number in range(2, MAX_SAME))]
        return next(self._folder / n for n in names if not (self._folder / n).exists())


def read_side(folder: Path) -> tuple[StoredRun, ...]:
    """The runs of one side: `folder` is a run or a measurement; ConfigError where it is neither."""
    if (folder / SUMMARY).exists():
        return (read_run(folder),)
    places = sorted(place.parent for place in folder.glob(f"*/{SUMMARY}"))
    if not places:
        raise ConfigError(
            f"no run in {str(folder)!r}: allowed are folders that `bana eval live` wrote"
        )
    runs = tuple(read_run(place) for place in places)
    sides = sorted({run.origin.side for run in runs})
    if len(sides) > 1:
        raise ConfigError(
            f"{str(folder)!r} holds runs of {', '.join(sides)}, which its own report compares; "
            "name a folder with runs of one side"
        )
    return runs


def report_series(series: Series) -> ReportInput:
    """The page over all runs of a series."""
    return ReportInput(
        runs=tuple(one.stored for one in series.measured),
        max_rates=series.max_rates,
        comparisons=tuple(_name_comparisons(series)),
        sentence=compose_series(series),
        sides=tuple(dict.fromkeys(one.point.side for one in series.measured)),
    )


def _name_comparisons(series: Series) -> Iterator[Comparison]:
    """Every comparison; with several of one metric, the metric says of whom over whom."""
    for one in series.compared:
        for comparison in one.runs.comparisons:
            if len(series.compared) == 1:
                yield comparison
            else:
                name = f"{comparison.metric}, {one.side} over {one.baseline}"
                yield msgspec.structs.replace(comparison, metric=name)


def describe_series(series: Series) -> SeriesSummary:
    """The same for machines."""
    return SeriesSummary(
        sentence=compose_series(series),
        runs={one.point.folder_name: one.stored.summary for one in series.measured},
        max_rates=series.max_rates,
        p99_bounded=series.p99_bounded,
        comparisons={
            f"{one.side} over {one.baseline}": one.runs.comparisons for one in series.compared
        },
    )


def name_rates(series: Series) -> dict[str, MaxRate]:
    """Max rates by the name that a reader sees."""
    bounded = {f"{name}, p99-bounded": rate for name, rate in series.p99_bounded.items()}
    return {**series.max_rates, **bounded}


def compose_series(series: Series) -> str:
    """The measurement in plain words: the answer and what limited it."""
    if len(series.measured) == 1:
        return series.measured[0].stored.summary.sentence
    said = [
        compose_comparison(one.runs).replace("B over A", f"{one.side} over {one.baseline}", 1)
        for one in series.compared
    ]
    said += [f"{name}: {compose_capacity(rate)}" for name, rate in name_rates(series).items()]
    unproven = [one.point.folder_name for one in series.measured if not one.is_proof]
    if unproven:
        said.insert(0, f"{len(unproven)} of {len(series.measured)} runs prove nothing.")
    return " ".join(said) or f"{len(series.measured)} runs of one server; see each."
