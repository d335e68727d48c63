"""A run's folder: written whole or not at all, and read back with what is wrong named.

    folder/.pending-…/ ──every file on disk──▶ renamed one by one, summary.json last

A folder without `summary.json` holds no run. The digests in it tell whether the files beside it
are those that were written with it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from bana.eval.report.lines import Lines, encode_json, read_lines, write_bytes, write_lines
from bana.eval.report.llmd import describe_llmd
from bana.eval.report.page import render_page
from bana.eval.report.records import Origin, ReportInput, RunFiles, StoredRun
from bana.eval.report.redaction import hide_secrets
from bana.eval.requests import LoadRun, Observed, Probe, ServerSample, Validity
from bana.eval.runs import RunAbout, RunRecord
from bana.eval.summary import Summary
from bana.slo.errors import BanaError, ConfigError

FORMAT = 1
REQUESTS = "requests.jsonl"
PROBES = "probes.jsonl"
SAMPLES = "samples.jsonl"
SUMMARY = "summary.json"
PAGE = "report.html"
LLMD = "llm-d-report.json"
PENDING = ".pending-"
NAMES = (REQUESTS, PROBES, SAMPLES, PAGE, LLMD, SUMMARY)


class Existing(StrEnum):
    """What becomes of a run that already lies in a folder."""

    REFUSE = "refuse"
    REPLACE = "replace"


class RunFrame(msgspec.Struct, frozen=True):
    """What a run needs besides its requests, probes and samples."""

    window_s: float
    duration_s: float
    validity: Validity
    is_interrupted: bool
    window_start_s: float | None


class KeptSummary(msgspec.Struct, frozen=True):
    """What `summary.json` holds; `files` by name."""

    format: int
    summary: Summary
    origin: Origin
    run: RunFrame
    files: Mapping[str, Lines]


class _Header(msgspec.Struct, frozen=True):
    format: int


def check_folder(folder: Path, existing: Existing = Existing.REFUSE) -> None:
    """ConfigError where a run could not be written to `folder`; ask before measuring."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file, allowed: a folder; name another one")
    found = [name for name in NAMES if (folder / name).exists()]
    if found and existing is Existing.REFUSE:
        raise ConfigError(
            f"{folder} already holds a run ({', '.join(found)}); name another folder, "
            "or say that it shall be replaced"
        )
    place = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder} cannot be written: no permission in {place}; name another one")


def write_run(folder: Path, stored: StoredRun, existing: Existing = Existing.REFUSE) -> RunFiles:
    """Write a run to `folder`, credentials hidden; all of its files or, on an error, none."""
    check_folder(folder, existing)
    kept = hide_secrets(stored)
    contents = {
        PAGE: render_page(ReportInput((kept,))).encode("utf-8", "replace"),
        LLMD: msgspec.json.format(encode_json(describe_llmd(kept)), indent=2) + b"\n",
    }
    try:
        with _stage(folder) as pending:
            for name, content in contents.items():
                write_bytes(pending / name, content)
            _write_measurements(pending, kept)
            _publish(pending, folder)
    except OSError as error:
        raise ConfigError(
            f"the run cannot be written to {folder} ({error.strerror or error}); "
            "free space or name another folder"
        ) from error
    return locate_files(folder)


def write_report(path: Path, report: ReportInput) -> None:
    """Write the page of several runs to `path`, in place of what was there."""
    hidden = tuple(hide_secrets(stored) for stored in report.runs)
    content = render_page(msgspec.structs.replace(report, runs=hidden)).encode("utf-8", "replace")
    try:
        with _stage(path.parent) as pending:
            write_bytes(pending / path.name, content)
            (pending / path.name).replace(path)
    except OSError as error:
        raise ConfigError(
            f"the report cannot be written to {path} ({error.strerror or error}); "
            "free space or name another file"
        ) from error


def read_run(folder: Path) -> StoredRun:
    """The run that lies in `folder`; ConfigError where there is none, or not the one written."""
    kept = _read_summary(folder / SUMMARY)
    try:
        observed = read_lines(folder / REQUESTS, Observed, _find_lines(kept, REQUESTS))
        probes = read_lines(folder / PROBES, Probe, _find_lines(kept, PROBES))
        samples = read_lines(folder / SAMPLES, ServerSample, _find_lines(kept, SAMPLES))
    except OSError as error:
        raise ConfigError(
            f"{error.filename} cannot be read ({error.strerror}); copy the whole folder again"
        ) from error
    summary, frame = kept.summary, kept.run
    about = RunAbout(
        summary.target, summary.seed, summary.fingerprint, summary.workload, frame.window_start_s
    )
    run = LoadRun(
        observed=observed,
        probes=probes,
        samples=samples,
        window_s=frame.window_s,
        duration_s=frame.duration_s,
        validity=frame.validity,
        is_interrupted=frame.is_interrupted,
    )
    return StoredRun(RunRecord(about, run), summary, kept.origin)


def locate_files(folder: Path) -> RunFiles:
    """Where the files of a run in `folder` lie."""
    return RunFiles(
        folder=folder,
        requests=folder / REQUESTS,
        probes=folder / PROBES,
        samples=folder / SAMPLES,
        summary=folder / SUMMARY,
        page=folder / PAGE,
        llmd=folder / LLMD,
    )


def _write_measurements(pending: Path, kept: StoredRun) -> None:
    run, about = kept.record.run, kept.record.about
    frame = RunFrame(
        window_s=run.window_s,
        duration_s=run.duration_s,
        validity=run.validity,
        is_interrupted=run.is_interrupted,
        window_start_s=about.window_start_s,
    )
    written = {
        REQUESTS: write_lines(pending / REQUESTS, run.observed),
        PROBES: write_lines(pending / PROBES, run.probes),
        SAMPLES: write_lines(pending / SAMPLES, run.samples),
    }
    content = encode_json(KeptSummary(FORMAT, kept.summary, kept.origin, frame, written))
    _check_whole(content)
    write_bytes(pending / SUMMARY, msgspec.json.format(content, indent=2) + b"\n")


def _check_whole(content: bytes) -> None:
    # JSON has no infinity: such a figure would be written as null and never be read again.
    try:
        msgspec.json.decode(content, type=KeptSummary)
    except msgspec.ValidationError as error:
        raise BanaError(f"a figure of the summary is no number ({error}); report this") from error


def _publish(pending: Path, folder: Path) -> None:
    (folder / SUMMARY).unlink(missing_ok=True)
    try:
        for name in NAMES:
            (pending / name).replace(folder / name)
    except BaseException:
        for name in NAMES:
            (folder / name).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _stage(folder: Path) -> Iterator[Path]:
    """A folder within `folder` to write to; on an error, no folder that it made remains."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=PENDING, dir=folder) as pending:
            yield Path(pending)
    except BaseException:
        with contextlib.suppress(OSError):
            for place in made:
                place.rmdir()
        raise


def _read_summary(path: Path) -> KeptSummary:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"no run in {path.parent}: {path.name} cannot be read ({error.strerror}); "
            "name a folder that a load run has written"
        ) from error
    try:
        header = msgspec.json.decode(content, type=_Header)
        if header.format != FORMAT:
            raise ConfigError(
                f"{path} has format {header.format}, allowed: {FORMAT}; "
                "measure again, or read it with the bana that wrote it"
            )
        return msgspec.json.decode(content, type=KeptSummary)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is no summary of a run ({error}); copy the whole folder again"
        ) from error


def _find_lines(kept: KeptSummary, name: str) -> Lines:
    if name not in kept.files:
        raise ConfigError(f"{SUMMARY} names no {name}; copy the whole folder again")
    return kept.files[name]
